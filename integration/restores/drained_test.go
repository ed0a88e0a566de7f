package restores_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/incluster"
)

// TestABackupRestoresWhatWasDrained: after a backup four of seven hosts are
// drained, one after the other, so that every stripe has more chunks elsewhere than
// it may lose. The restored metadata finds all of them, and every file reads.
func TestABackupRestoresWhatWasDrained(t *testing.T) {
	inWorld(t, incluster.Options{Chunkservers: 7, Grace: 5 * time.Second}, func(w *world) {
		for i := range 6 {
			w.put(fmt.Sprintf("/f%d", i), 600<<10+i*1000, byte(i))
		}
		backup := w.backup()
		w.drain("n1", "n2", "n3", "n4")
		require.Empty(t, w.unreadable())
		w.restore(backup)
		w.settled()
		c := w.cluster()
		require.Zero(t, c.LostStripes, "stripes are lost whose chunks are all on disk")
		require.Empty(t, w.unreadable())
		require.NoError(t, w.Check())
	})
}
