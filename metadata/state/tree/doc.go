// Package tree reads the namespace for all handlers: inodes, entries, paths,
// policies and scopes. Of changes it has only those that every handler shares:
// it writes an inode, and notes what clients must drop from their caches.
//
// A handler gets an inode that a client names by Named, which checks that the
// session's scope covers it. It changes the record and calls PutInode. That
// writes the record and adds a Touch to the transaction, from which the leader
// recalls leases.
package tree
