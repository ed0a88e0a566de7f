package metadata_test

import (
	"encoding/binary"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// openWith opens a session under the nth nonce.
func (c *cluster) openWith(p *transport.Peer, n int) (*client, error) {
	nonce := binary.BigEndian.AppendUint64(make([]byte, 8), uint64(n))
	resp, err := c.do(p, &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: nonce}}})
	if err != nil {
		return nil, err
	}
	return &client{c: c, peer: p, session: resp.GetSession().Session}, nil
}

// TestSessionsOfACertificateAreBounded: a client that opens sessions in a loop would fill the
// leader's memory faster than sessions expire.
func TestSessionsOfACertificateAreBounded(t *testing.T) {
	const most = 20
	var metrics []*lead.Metrics
	bubbleWith(t, func(cfg *metadata.Config, deps *metadata.Deps) {
		cfg.MaxSessions = most
		deps.Metrics = lead.NewMetrics(nil)
		metrics = append(metrics, deps.Metrics)
	}, func(c *cluster) {
		p := peer(transport.RoleClient, "c1")
		refused := func(n int) {
			t.Helper()
			_, err := c.openWith(p, n)
			require.ErrorIs(t, err, moraine.Unavailable)
			require.ErrorContains(t, err, `the certificate of "c1" has 20 live sessions`)
			require.ErrorContains(t, err, "--max-sessions")
		}
		var all []*client
		for n := range most {
			k, err := c.openWith(p, n)
			require.NoError(t, err)
			all = append(all, k)
		}
		refused(100)
		again, err := c.openWith(p, 3)
		require.NoError(t, err, "a repeat opens no session")
		require.Equal(t, all[3].session, again.session)
		_, err = c.openWith(peer(transport.RoleClient, "c2"), 200)
		require.NoError(t, err, "another certificate has a bound of its own")

		// A new leader counts the sessions of the state.
		c.elect("m2")
		refused(101)
		_, err = all[0].do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
		require.NoError(t, err)
		_, err = c.openWith(p, 102)
		require.NoError(t, err, "a session that was closed makes room")
		refused(103)
		time.Sleep(62 * time.Second)
		for n := range most {
			_, err := c.openWith(p, 300+n)
			require.NoError(t, err, "sessions that expired make room")
		}
		refused(104)
		total := 0.0
		for _, m := range metrics {
			var got dto.Metric
			require.NoError(t, m.SessionsRefused.Write(&got))
			total += got.GetCounter().GetValue()
		}
		require.Equal(t, 4.0, total)
	})
}

// TestRestartsAreNotRefused: the ranks of a host are killed repeatedly within a term, so that none
// of their sessions was closed or has expired.
func TestRestartsAreNotRefused(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		const ranks, restarts = 64, 50
		p := peer(transport.RoleClient, "c1")
		for n := range ranks * restarts {
			_, err := c.openWith(p, n)
			require.NoError(t, err, "session %d", n)
		}
		require.Greater(t, metadata.DefaultMaxSessions, 10*ranks*restarts)
	})
}
