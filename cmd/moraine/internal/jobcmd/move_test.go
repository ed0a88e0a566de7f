package jobcmd

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// file is the attributes of a file of 10 bytes.
type file struct {
	stored         int64
	clean, evicted bool
}

func (f file) Size() int64   { return 10 }
func (f file) Stored() int64 { return f.stored }
func (f file) Clean() bool   { return f.clean }
func (f file) Evicted() bool { return f.evicted }

func TestWhereAMoveBringsAFile(t *testing.T) {
	reached := map[string]func(whereabouts) bool{}
	for _, m := range moves {
		reached[m.name] = m.reached
	}
	local := file{stored: 10}
	both := file{stored: 10, clean: true}
	gone := file{clean: true, evicted: true}
	for name, want := range map[string][3]bool{"flush": {false, true, true}, "evict": {false, false, true}, "stage": {true, true, false}} {
		require.Equal(t, want, [3]bool{reached[name](local), reached[name](both), reached[name](gone)}, name)
	}
}
