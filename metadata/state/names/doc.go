// Package names has the requests that change the namespace: creation, links,
// renames, attributes, removal of trees, policies. It also answers look-ups and
// listings.
//
// Create checks the name and the scope, issues an inode number, links the inode
// under its directory and answers its attributes. DropName takes a name away;
// with the last name the content goes too (package layout), unless a session
// holds the file open.
package names
