package metadata_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/wire"
)

// TestACapabilityAllowsWhatItsGrantSays: otherwise a client with a grant of few short chunks could
// write as many and as long ones as possible by naming another scheme when it renews the
// capability.
func TestACapabilityAllowsWhatItsGrantSays(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		c.pass(time.Second, c.fleet(3)...)
		k := c.open(peer(transport.RoleClient, "c1"))
		claims := func(b []byte, err error) *wire.CapabilityClaims {
			t.Helper()
			require.NoError(t, err)
			got, err := capability.Parse(b)
			require.NoError(t, err)
			return got
		}
		ask := func(scheme *wire.Scheme, length uint64) *wire.GrantReply {
			t.Helper()
			resp, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: root, Count: 4, Scheme: scheme, ChunkLength: length}}})
			require.NoError(t, err)
			return resp.GetGrant()
		}
		renew := func(first uint64, scheme *wire.Scheme, length uint64) *wire.CapabilityClaims {
			t.Helper()
			resp, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Place{Place: &wire.Place{Stripes: []uint64{first}, Scheme: scheme, ChunkLength: length, Capability: true}}})
			return claims(resp.GetPlace().GetCapability(), err)
		}
		small := ask(&wire.Scheme{K: 1, M: 1}, 64<<10)
		for _, got := range []*wire.CapabilityClaims{claims(small.Capability, nil), renew(small.First, nil, 0),
			renew(small.First, &wire.Scheme{K: 1, M: 2}, 4<<20)} {
			require.EqualValues(t, 2, got.Chunks)
			require.EqualValues(t, 64<<10, got.Length)
			require.EqualValues(t, small.First, got.Stripes[0].First)
			require.EqualValues(t, 4, got.Stripes[0].Count)
		}
		whole := ask(nil, 0)
		got := claims(whole.Capability, nil)
		require.EqualValues(t, whole.Scheme.K+whole.Scheme.M, got.Chunks)
		require.EqualValues(t, moraine.MaxChunkSize, got.Length)
	})
}
