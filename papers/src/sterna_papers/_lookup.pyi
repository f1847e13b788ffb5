layouts: object
