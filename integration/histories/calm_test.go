package histories_test

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/testseed"
)

// TestNothingIsUnknownWithoutFaults compares the model with a cluster without faults:
// every operation is answered, as the model says.
func TestNothingIsUnknownWithoutFaults(t *testing.T) {
	seed := testseed.First(t)
	out := playOne(t, options{seed: seed, clients: 8, cached: 4, arenas: 4, lasts: 2 * time.Second, calm: true})
	r, at := out.h.verdict()
	require.Equal(t, porcupine.Ok, r, "seed %d, arena %d", seed, at)
	t.Logf("seed %d: %d operations, %d of unknown outcome", seed, out.ops, out.unknown)
}
