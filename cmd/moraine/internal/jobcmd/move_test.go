package jobcmd

import (
	"testing"

	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

func TestWhereAMoveBringsAFile(t *testing.T) {
	reached := map[string]func(*wire.Attr) bool{}
	for _, m := range moves {
		reached[m.name] = m.reached
	}
	local := &wire.Attr{Size: 10, Stored: 10}
	both := &wire.Attr{Size: 10, Stored: 10, Clean: true}
	gone := &wire.Attr{Size: 10, Clean: true, Evicted: true}
	for name, want := range map[string][3]bool{"flush": {false, true, true}, "evict": {false, false, true}, "stage": {true, true, false}} {
		require.Equal(t, want, [3]bool{reached[name](local), reached[name](both), reached[name](gone)}, name)
	}
}
