// Package check verifies all records of a partition against each other: reference counts, link
// counts, indexes, counters and the running sum. It changes nothing.
//
// Check runs one pass after the other over the tables. Each pass collects what its table says of
// inodes, tables and stripes. Check returns each contradiction as a text.
package check

// The compiler inlines the methods of View.K only in packages that import keys themselves. Otherwise
// each key is allocated.
import _ "github.com/morainefs/moraine/metadata/state/keys"
