"""Operations of the control port (`proxy.control.server` binds it).

`operations` lists it, `openapi` describes that; `assignments` and `switches` change what
`proxy.topics.settings_store` keeps.
"""
