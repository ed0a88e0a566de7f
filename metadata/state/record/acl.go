package record

// The extended attributes of access control lists. Package names has their rules.
const (
	// AccessACL is the attribute with the list that decides who may use an inode. An inode whose list
	// says no more than its mode has no such attribute.
	AccessACL = "system.posix_acl_access"
	// DefaultACL is that of a directory with the list that new entries inherit.
	DefaultACL = "system.posix_acl_default"
)
