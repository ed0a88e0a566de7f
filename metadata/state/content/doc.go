// Package content handles the requests that give a file its content: commits, clones,
// concatenations, and the rewriting and packing of stripes by movers. It also finds lost bytes and
// raises the level of files whose chunks are durable.
//
// Commit checks the stripes against the session's grants and the devices and takes their numbers.
// It then lays the extents over the file (package layout) and raises its generation. A commit that
// was applied before gets the same answer again.
package content

// The compiler inlines the methods of View.K only in packages that import keys themselves. Otherwise
// each key is allocated.
import _ "github.com/morainefs/moraine/metadata/state/keys"
