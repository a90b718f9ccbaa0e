"""What the control port serves (`proxy.control` binds it).

`operations` lists it, `openapi` describes that; `assignments` and `switches` change what
`proxy.settings_store` keeps.
"""
