package serve

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheHeapHasRoom(t *testing.T) {
	const room = 256 << 20
	require.Equal(t, 800, collectAt(32<<20, room), "a small heap grows by the room")
	require.Equal(t, 100, collectAt(1<<30, room), "a large one by what is alive")
	require.Equal(t, 6400, collectAt(0, room), "one that was never collected is bounded too")
}
