"""Opens a store by its URL; each store is one package, imported only when it is named."""
