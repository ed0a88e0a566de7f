// Package usage counts what is below each directory and enforces quotas.
// Handlers do not count. At the end of each command ApplyUsage compares the
// inode records that the command wrote with their previous versions. It adds
// the difference to each directory up to the root. A recount builds a second
// column of counts beside the one in use.
package usage

// The compiler inlines the methods of View.K only in packages that import keys themselves. Otherwise
// each key is allocated.
import _ "github.com/morainefs/moraine/metadata/state/keys"
