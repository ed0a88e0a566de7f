// Package tree reads the namespace for all handlers: inodes, entries, paths, policies and scopes.
// Its only changes are those that every handler shares: it writes an inode, and records what
// clients must drop from their caches.
//
// A handler gets an inode that a client names by Named, which checks that the session's scope
// covers it. The handler changes the record and calls PutInode. That writes the record and adds a
// Touch to the transaction, by which the leader recalls cache leases.
package tree

// The compiler inlines the methods of View.K only in packages that import keys themselves. Otherwise
// each key is allocated.
import _ "github.com/morainefs/moraine/metadata/state/keys"
