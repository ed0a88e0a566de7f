package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// concatCut is a cluster whose metadata servers lose their power while a file is
// made of many ranges, like the completion of a large S3 upload.
type concatCut struct {
	t      *testing.T
	rng    *rand.Rand
	c      *incluster.Cluster
	looker *incluster.Client // the client that checks afterwards

	within int // cuts that found the job begun and not done
}

// parts makes a directory of parts. It returns ranges of them, one after the other,
// and their combined bytes.
func (h *concatCut) parts() (dir moraine.InodeID, ranges []client.InodeRange, want []byte) {
	ctx := h.t.Context()
	a, err := h.looker.Mkdir(ctx, "/parts", 0o755)
	require.NoError(h.t, err)
	var parts [][]byte
	var files []moraine.InodeID
	for i := range 5 {
		f, err := h.looker.Create(ctx, fmt.Sprintf("/parts/%d", i), client.CreateOptions{})
		require.NoError(h.t, err)
		part := make([]byte, 1000+h.rng.IntN(9000))
		for j := range part {
			part[j] = byte(h.rng.Uint32())
		}
		_, err = f.Write(part)
		require.NoError(h.t, err)
		_, err = f.Commit(ctx)
		require.NoError(h.t, err)
		parts, files = append(parts, part), append(files, f.Inode())
	}
	for range 700 + h.rng.IntN(800) {
		of, length := h.rng.IntN(len(parts)), 1+h.rng.IntN(50)
		at := h.rng.IntN(len(parts[of]) - length)
		ranges = append(ranges, client.InodeRange{Inode: files[of], Offset: int64(at), Length: int64(length)})
		want = append(want, parts[of][at:at+length]...)
	}
	return a.Inode(), ranges, want
}

// round makes one file, and cuts the power once the metadata service has accepted
// the request, before a random later disk operation. The client lives and gets an
// answer, or it dies with the servers.
func (h *concatCut) round(dies bool) {
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	dir, ranges, want := h.parts()
	// A job takes about this many operations, and some more: most cuts fall into
	// it.
	after, armed := 1+h.rng.IntN(len(ranges)/6), make(chan (<-chan struct{}), 1)
	cl, err := h.c.ClientOver(ctx, "c", client.Config{}, func(d transport.Dialer) transport.Dialer {
		return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
			resp, err := m.Do(ctx, req)
			if len(resp.GetJobs().GetJobs()) == 1 && req.GetConcat() != nil {
				select {
				case armed <- h.c.PowerCutAfter(after, "m1", "m2", "m3"):
				default: // it was requested again
				}
			}
			return resp, err
		})
	})
	require.NoError(h.t, err)
	ended := make(chan error, 1)
	go func() {
		_, consumed, err := cl.ConcatParts(ctx, "/whole", ranges, dir, client.CreateOptions{})
		if err == nil && !consumed {
			err = errors.New("the parts were left to the caller")
		}
		ended <- err
	}()
	var cut <-chan struct{}
	select {
	case cut = <-armed:
	case err := <-ended:
		require.NoError(h.t, err, "before the service had it")
	}
	select {
	case <-cut:
	case <-time.After(10 * time.Second):
		h.c.CancelCut()
		h.c.PowerCut("m1", "m2", "m3")
	}
	if dies {
		cancel()
		<-ended
		cl.Kill()
	}
	time.Sleep(time.Duration(h.rng.IntN(3000)) * time.Millisecond)
	require.NoError(h.t, h.c.Restart())
	require.NoError(h.t, h.c.WaitReady(h.t.Context()))
	h.looks(len(ranges))
	if !dies {
		require.NoError(h.t, <-ended)
		require.NoError(h.t, cl.Close())
	}
	h.holds(want)
}

// looks counts a job that the cut fell into, and waits until it is over.
func (h *concatCut) looks(ranges int) {
	for first := true; ; first = false {
		pending := false
		for j, err := range h.looker.Jobs().List(h.t.Context(), false) {
			require.NoError(h.t, err)
			if j.Kind == client.JobConcat {
				pending = true
				if first && j.Done > 0 && j.Done < uint64(ranges) {
					h.within++
				}
			}
		}
		if !pending {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// holds requires the file, whole, and no parts, and removes the file. The service
// had accepted the request, so it is carried out even if the client died.
func (h *concatCut) holds(want []byte) {
	ctx := h.t.Context()
	r, err := h.looker.OpenFile(ctx, "/whole")
	require.NoError(h.t, err)
	require.EqualValues(h.t, len(want), r.Size())
	got := make([]byte, len(want))
	require.NoError(h.t, r.ReadRange(ctx, got, 0))
	require.True(h.t, bytes.Equal(want, got), "the file is not what its parts were")
	require.NoError(h.t, r.Close())
	_, err = h.looker.Stat(ctx, "/parts")
	require.ErrorIs(h.t, err, moraine.NotFound)
	require.NoError(h.t, h.looker.Remove(ctx, "/whole"))
}

// TestPowerCutsDuringAConcatenation cuts the power of all metadata servers while a
// job concatenates many ranges. When they are back the job continues from its
// position. The file is there, whole and once, and its parts are gone, whether or
// not the client survived.
func TestPowerCutsDuringAConcatenation(t *testing.T) {
	s, rounds := seed(t), testseed.Runs(t, 2, 100)
	synctest.Test(t, func(t *testing.T) {
		c, err := incluster.Start(t.Context(), incluster.Options{Seed: s, Chunkservers: 3, SessionTimeout: 20 * time.Second})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Stop()) }()
		require.NoError(t, c.WaitReady(t.Context()))
		h := &concatCut{t: t, rng: random(s), c: c}
		h.looker, err = c.Admin(t.Context(), "looker")
		require.NoError(t, err)
		for n := range rounds {
			h.round(n%2 == 1)
		}
		require.NoError(t, h.looker.Close())
		t.Logf("%d cuts, %d of them within the job", rounds, h.within)
		if rounds >= 50 {
			require.Positive(t, h.within, "no cut fell into a job")
		}
		require.NoError(t, c.WaitReady(t.Context()))
		time.Sleep(2 * time.Second)
		require.NoError(t, c.Check())
	})
}
