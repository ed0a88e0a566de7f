// Package layout maps files to stripes and objects. It has extent tables,
// references to them, and the counts that say when nothing uses a stripe or an
// object any more. It changes tables in place, merges small ones, and releases
// what no table refers to.
//
// Overlay lays new extents over a file and edits or replaces the affected tables. A stripe that
// loses its last use dies, and each of its chunks gets a tombstone. A job removes content with many
// tables, in pieces.
package layout

// The compiler inlines the methods of View.K only in packages that import keys themselves. Otherwise
// each key is allocated.
import _ "github.com/morainefs/moraine/metadata/state/keys"
