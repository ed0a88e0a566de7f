//go:build !moraine_level2

package state

import "github.com/morainefs/moraine/metadata/state/statepb"

// knows reports whether this build knows a command that it can decode. It knows them all. The build
// that imitates an earlier release in upgrade tests does not.
func knows(*statepb.Command) bool { return true }
