// Package names handles the requests that change the namespace: creation, links, renames,
// attributes, removal of trees, policies. It also answers lookups and listings.
//
// Create checks the name and the scope, issues an inode number, links the inode into its directory
// and answers its attributes. DropName removes a name. With the last name it also removes the
// content (package layout), unless a session has the file open.
package names

// The compiler inlines the methods of View.K only in packages that import keys themselves. Otherwise
// each key is allocated.
import _ "github.com/morainefs/moraine/metadata/state/keys"
