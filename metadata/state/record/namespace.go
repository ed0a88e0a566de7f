package record

const TenantVersion = 1
