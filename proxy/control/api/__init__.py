"""Operations of the control port (`proxy.control.server` binds it).

`openapi` describes them; those of `assignments` and `switches` change what
`proxy.topics.settings_store` keeps.
"""
