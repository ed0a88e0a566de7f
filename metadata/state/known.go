//go:build !moraine_level2

package state

import "github.com/morainefs/moraine/metadata/state/statepb"

// knows reports whether this build knows a command that it can decode: all of them. A
// build that stands for an earlier release, for the tests of upgrades, does not.
func knows(*statepb.Command) bool { return true }
