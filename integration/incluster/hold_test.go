package incluster_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/vfs"
)

// TestHold: a hold ends by itself a minute after its last begin, and no minute of
// an earlier one ends it. Writes that it blocked continue when it ends.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &incluster.Hold{}
		h.Begin()
		time.Sleep(50 * time.Second)
		h.End()
		h.Begin()
		through := make(chan error, 1)
		go func() { through <- h.Rule("n1", vfs.Op{Kind: vfs.OpWrite, Path: "segments/1"}) }()
		time.Sleep(20 * time.Second) // the first one's minute is over
		require.True(t, h.On())
		h.Begin()
		time.Sleep(50 * time.Second)
		require.True(t, h.On())
		require.Empty(t, through)
		time.Sleep(11 * time.Second)
		require.False(t, h.On())
		require.NoError(t, <-through)
	})
}
