package metadata_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// writeMany makes files with n stripes in all in the root, and returns the stripes.
func (k *client) writeMany(n int) (out []*wire.Stripe) {
	k.c.t.Helper()
	var left []*wire.Placement
	for len(out) < n {
		if len(left) == 0 {
			g, err := k.grant(fleet.MaxGrant, nil)
			require.NoError(k.c.t, err)
			left = g.Placements
		}
		resp, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
			Parent: root, Name: fmt.Sprintf("many%d", len(out)), Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: true}}})
		require.NoError(k.c.t, err)
		op := &wire.Commit{Inode: resp.GetEntry().Attr.Inode, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: uint32(moraine.NVMe), Final: true}
		for _, p := range left[:min(len(left), moraine.MaxCommitStripes, n-len(out))] {
			s := &wire.Stripe{Id: p.Stripe, Scheme: p.Scheme, Version: 1, Length: 1 << 20}
			for i, d := range p.Devices {
				s.Chunks = append(s.Chunks, &wire.ChunkState{Device: d, Crc: uint32(i), Level: uint32(moraine.NVMe)})
			}
			op.Extents = append(op.Extents, &wire.Extent{Offset: uint64(len(op.Stripes)) << 20, Length: s.Length, Stripe: s.Id})
			op.Stripes, out = append(op.Stripes, s), append(out, s)
		}
		left = left[len(op.Stripes):]
		_, err = k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}})
		require.NoError(k.c.t, err)
	}
	return out
}

// awayIn is away in one attempt that ends after reads stripe records were read, or not early if
// reads is 0. It returns how many were read.
func (c *cluster) awayIn(seen *seenReads, host string, reads int) (int, error) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var count atomic.Int64
	table := strings.TrimSuffix(stripeKey(1), string(binary.BigEndian.AppendUint64(nil, 1)))
	seen.set(func(key []byte) bool {
		if bytes.HasPrefix(key, []byte(table)) && count.Add(1) == int64(reads) {
			cancel()
		}
		return false
	})
	defer seen.set(nil)
	_, err := c.leader().Do(transport.WithPeer(ctx, peer(transport.RoleAdmin, "ops")), announce(host))
	return int(count.Load()), err
}

func announce(host string) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_SetMaintenance{SetMaintenance: &wire.SetMaintenance{Host: host, Millis: 60_000}}}
}

// The leader judges the stripes of a large host over several attempts of one announcement. Each
// attempt continues where the previous one ended, with one lookup per stripe.
func TestMaintenanceOfALargeHost(t *testing.T) {
	const many, attempt = 20_000, 6_000
	bubbleSeen(t, func(c *cluster, seen *seenReads) {
		nodes := c.fleet(3)
		k := c.open(peer(transport.RoleClient, "c1"))
		all := k.writeMany(many) // 1+2, on all three
		c.pass(2*time.Second, nodes...)
		var total, attempts int
		for {
			n, err := c.awayIn(seen, "n1", attempt)
			total, attempts = total+n, attempts+1
			if err == nil {
				break
			}
			require.ErrorIs(t, err, moraine.Canceled)
			require.Less(t, attempts, 10, "it does not come to its end")
			// An attempt that runs out of time reports its progress.
			soon, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			_, err = c.leader().Do(transport.WithPeer(soon, peer(transport.RoleAdmin, "ops")), announce("n1"))
			cancel()
			require.ErrorIs(t, err, moraine.Unavailable)
			require.Regexp(t, `checked [1-9]\d{3,} stripes of the host, and there are more`, err)
			c.pass(time.Second, nodes...)
		}
		require.Equal(t, 4, attempts)
		require.GreaterOrEqual(t, total, many)
		require.Less(t, total, many+many/20)
		require.NoError(t, c.away("n1", 0, false))

		// Changes meanwhile count: a chunk before the judgement's position becomes bad.
		broken := func() error {
			_, err := c.awayIn(seen, "n1", attempt)
			return err
		}
		require.ErrorIs(t, broken(), moraine.Canceled)
		for i, d := range all[0].Chunks {
			if d.Device != nodes[0].devices[0].Id {
				_, err := k.c.verified(badChunk(all[0], i))
				require.NoError(t, err)
				break
			}
		}
		n, err := c.awayIn(seen, "n1", 0)
		require.ErrorIs(t, err, moraine.Conflict)
		require.ErrorContains(t, err, fmt.Sprintf("1 stripe would be left without redundancy (of %d that it has chunks of), as chunks of 1 stripe are lost or corrupt", many))
		require.Less(t, n, many-attempt+many/20)

		// So does a change of hosts or devices, and a host that becomes silent: the judgement
		// restarts, and ends when it has found enough.
		require.ErrorIs(t, broken(), moraine.Canceled)
		nodes[1].again()
		c.pass(2*time.Second, nodes...)
		n, err = c.awayIn(seen, "n1", 0)
		require.ErrorIs(t, err, moraine.Conflict)
		require.Greater(t, n, many)
		require.ErrorIs(t, broken(), moraine.Canceled)
		c.pass(6*time.Second, nodes[0], nodes[1])
		err = c.away("n1", time.Minute, false)
		require.ErrorContains(t, err, "at least 1024 stripes would be left without redundancy (of the first 1024 that it has chunks of), as n3 is down")

		// No request continued it for a while, so it restarts.
		c.pass(3*time.Second, nodes...)
		require.ErrorIs(t, broken(), moraine.Canceled)
		c.pass(2*time.Minute, nodes...)
		n, err = c.awayIn(seen, "n1", 0)
		require.ErrorIs(t, err, moraine.Conflict)
		require.Greater(t, n, many)
	})
}
