package metadata_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// TestAHostSpeaksOfOneBucket: however many buckets a host reports as probed, the leader keeps only
// its last report, and none of an unregistered host.
func TestAHostSpeaksOfOneBucket(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(2)
		probed := func(node, bucket string, crc bool) {
			_, err := c.do(peer(transport.RoleChunkserver, node), &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
				Max: 1, Bucket: "b", Traits: &wire.BucketTraits{Bucket: bucket, WholeCrc: crc}}}})
			require.NoError(t, err)
		}
		told := func() []string {
			resp, err := c.do(peer(transport.RoleAdmin, "a1"), &wire.MetaRequest{Op: &wire.MetaRequest_GetTier{GetTier: &wire.GetTier{}}})
			require.NoError(t, err)
			var out []string
			for _, b := range resp.GetTier().Traits {
				out = append(out, fmt.Sprint(b.Bucket, " ", b.WholeCrc))
			}
			return out
		}
		for n := range 100 {
			probed(nodes[0].id, fmt.Sprintf("s3://made-up-%d/", n), true)
		}
		probed("nobody", "s3://nobody/", true)
		require.Equal(t, []string{"s3://made-up-99/ true"}, told())
		probed(nodes[0].id, "s3://"+strings.Repeat("x", 1<<20), true)
		probed(nodes[1].id, "s3://made-up-99/", false)
		require.Equal(t, []string{"s3://made-up-99/ false"}, told(), "the last word counts")
		probed(nodes[0].id, "s3://b/", true)
		require.Equal(t, []string{"s3://b/ true", "s3://made-up-99/ false"}, told())
	})
}
