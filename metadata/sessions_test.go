package metadata_test

import (
	"crypto/ed25519"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/metadatatest"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

func TestRepeatAfterFailoverGetsTheFirstAnswer(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		k := c.open(peer(transport.RoleClient, "c1"))
		req := mkdir(root, "a")
		first, err := k.do(req)
		require.NoError(t, err)
		c.elect("m2")
		again, err := c.do(k.peer, req)
		require.NoError(t, err)
		require.True(t, proto.Equal(first, again), "want the first answer %v, got %v", first, again)

		_, err = k.do(mkdir(root, "a"))
		require.ErrorIs(t, err, moraine.Exists, "a new number is a new request")
	})
}

func TestRepeatAfterALostReply(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		k := c.open(peer(transport.RoleClient, "c1"))
		c.group.Fail(metadatatest.Faults{LoseReplies: 1})
		req := mkdir(root, "a")
		_, err := k.do(req)
		require.ErrorIs(t, err, moraine.Unavailable)
		resp, err := c.do(k.peer, req)
		require.NoError(t, err)
		require.NotZero(t, resp.GetEntry().GetAttr().GetInode())
	})
}

// The transport tells callers of another incarnation to connect again.
func TestALeaderKnowsTheHistoryThatItLeads(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		require.Equal(t, moraine.Incarnation(1), c.servers["m1"].Incarnation())
		require.Zero(t, c.servers["m2"].Incarnation())
		c.elect("m2")
		require.Equal(t, moraine.Incarnation(1), c.servers["m2"].Incarnation())
	})
}

func TestFollowersNameTheLeader(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		ctx := transport.WithPeer(t.Context(), peer(transport.RoleClient, "c1"))
		_, err := c.servers["m2"].Do(ctx, lookup("a"))
		require.ErrorIs(t, err, moraine.NotLeader)
		var hint *transport.LeaderHint
		require.ErrorAs(t, err, &hint)
		require.Equal(t, &transport.LeaderHint{ID: "m1", Addresses: []string{"m1:7000"}}, hint)

		c.elect("")
		_, err = c.servers["m1"].Do(ctx, lookup("a"))
		require.ErrorIs(t, err, moraine.NotLeader)
		require.False(t, c.servers["m1"].Status().Leading)
		require.Error(t, c.servers["m1"].Healthy())
	})
}

func TestSessionsExpire(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		idle := c.open(peer(transport.RoleClient, "c1"))
		busy := c.open(peer(transport.RoleClient, "c2"))
		for range 7 {
			time.Sleep(10 * time.Second)
			require.NoError(t, busy.renew())
		}
		synctest.Wait()
		_, err := idle.do(mkdir(root, "a"))
		require.ErrorIs(t, err, moraine.SessionExpired)
		require.ErrorIs(t, idle.renew(), moraine.SessionExpired)
		_, err = busy.do(mkdir(root, "b"))
		require.NoError(t, err)
	})
}

func TestNewLeaderGivesSessionsAFullTerm(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		k := c.open(peer(transport.RoleClient, "c1"))
		time.Sleep(55 * time.Second)
		c.elect("m2")
		time.Sleep(55 * time.Second)
		require.NoError(t, k.renew())
		_, err := k.do(mkdir(root, "a"))
		require.NoError(t, err)
		time.Sleep(65 * time.Second)
		require.ErrorIs(t, k.renew(), moraine.SessionExpired)
	})
}

func TestNoTermEndsWhileThereIsNoLeader(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		k := c.open(peer(transport.RoleClient, "c1"))
		c.elect("")
		time.Sleep(10 * time.Minute)
		c.elect("m3")
		require.NoError(t, k.renew())
	})
}

func TestReopenFindsTheSession(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		open := &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: make([]byte, 16)}}}
		p := peer(transport.RoleClient, "c1")
		first, err := c.do(p, open)
		require.NoError(t, err)
		c.elect("m2")
		again, err := c.do(p, open)
		require.NoError(t, err)
		require.Equal(t, first.GetSession().Session, again.GetSession().Session)
	})
}

func TestTokens(t *testing.T) {
	bubble(t, func(cfg *metadata.Config) { cfg.KeyLife = time.Hour }, func(c *cluster) {
		server := peer(transport.RoleChunkserver, "n1")
		keys := func() map[uint64]ed25519.PublicKey {
			resp, err := c.do(server, &wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{}}})
			require.NoError(t, err)
			out := map[uint64]ed25519.PublicKey{}
			for _, k := range resp.GetHeartbeat().Keys {
				require.Empty(t, k.Sealed, "a private key must not leave the state, sealed or not")
				out[k.Id] = k.PublicKey
			}
			return out
		}
		claims := func(reply *wire.SessionReply) *wire.TokenClaims {
			var token wire.SessionToken
			require.NoError(t, proto.Unmarshal(reply.Token, &token))
			var claims wire.TokenClaims
			require.NoError(t, proto.Unmarshal(token.Claims, &claims))
			key := keys()[claims.Key]
			require.NotNil(t, key, "the key must be one that chunkservers know")
			require.True(t, ed25519.Verify(key, token.Claims, token.Signature))
			return &claims
		}
		k := c.open(peer(transport.RoleClient, "c1"))
		got := claims(k.reply)
		require.Equal(t, k.session, got.Session)
		require.Equal(t, "c1", got.Node)
		require.True(t, got.AllTenants)
		require.Equal(t, clusterUUID[:], got.Cluster)
		require.Equal(t, time.Now().Add(10*time.Minute).Unix(), got.Expires)

		// An hour later there is a second key, used once it had time to spread.
		for range 63 {
			time.Sleep(time.Minute)
			_ = c.open(peer(transport.RoleClient, "c2"))
		}
		later := c.open(peer(transport.RoleClient, "c3"))
		require.NotEqual(t, got.Key, claims(later.reply).Key)
		require.Len(t, keys(), 2)
	})
}

// The processes of a large job die at once. Their sessions end with their term, however many they
// are, because their belongings block the next job.
func TestManySessionsExpireAtOnce(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		const many = 2000
		var all []*client
		for n := range many {
			resp, err := c.do(peer(transport.RoleClient, "c1"), &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{
				Nonce: append(make([]byte, 14), byte(n>>8), byte(n))}}})
			require.NoError(t, err)
			all = append(all, &client{c: c, peer: peer(transport.RoleClient, "c1"), session: resp.GetSession().Session})
		}
		time.Sleep(62 * time.Second)
		left := 0
		for _, k := range all {
			if k.renew() == nil {
				left++
			}
		}
		require.Zero(t, left, "sessions that are renewed after their term")
		time.Sleep(2 * time.Second)
		c.group.View(func(r kvtx.Reader) {
			n, err := kvtx.ReadCounters(state.New(0).View(r))
			require.NoError(t, err)
			require.Zero(t, n.Sessions)
		})
	})
}
