package clustercmd

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// TestGreenNeedsServersThatCanBeUsed compares the status with the reports of peers,
// certificates, the bucket and the check of the metadata. A fault is degraded, and missing
// knowledge is unknown. Neither changes what the status says of the protection of stripes.
func TestGreenNeedsServersThatCanBeUsed(t *testing.T) {
	const day = 86400
	for _, row := range []struct {
		name   string
		change func(c *wire.ClusterReply)
		health string
		says   []string
	}{
		{"all is well", func(*wire.ClusterReply) {}, healthGreen, nil},
		{"nobody has tried a host", func(c *wire.ClusterReply) { c.Topology.Hosts[2].Endpoint = &wire.EndpointHealth{Tried: 1} }, healthUnknown,
			[]string{"it is not known yet whether n3 can be reached"}},
		{"the leader says nothing of endpoints", func(c *wire.ClusterReply) {
			for _, h := range c.Topology.Hosts {
				h.Endpoint = nil
			}
		}, healthUnknown, []string{"it is not known yet whether n1, n2, n3, n4, n5 and 1 more can be reached"}},
		{"one peer cannot reach a host", func(c *wire.ClusterReply) {
			c.Topology.Hosts[2].Endpoint = &wire.EndpointHealth{Tried: 3, Failed: 1, Known: true, Error: "n5: refused"}
		}, healthDegraded, []string{"1 of 3 chunkservers that tried get no connection to host n3 (n5: refused)"}},
		{"a host cannot be called", func(c *wire.ClusterReply) {
			c.Topology.Hosts[2].Endpoint = &wire.EndpointHealth{Tried: 3, Failed: 2, Known: true, Unreachable: true, Error: "n5: certificate expired"}
		}, healthDegraded, []string{"host n3 is up, and 2 of 3 chunkservers that tried get no connection to it (n5: certificate expired)"}},
		{"a metadata server cannot be called", func(c *wire.ClusterReply) {
			c.Metadata[1].Endpoint = &wire.EndpointHealth{Tried: 2, Failed: 2, Known: true, Unreachable: true}
		}, healthDegraded, []string{"metadata server m2 is up, and 2 of 2"}},
		{"a host reaches nobody", func(c *wire.ClusterReply) { c.Topology.Hosts[2].Endpoint.Deaf = true }, healthDegraded,
			[]string{"host n3 reaches none of the servers that it tries"}},
		{"a certificate expires soon", func(c *wire.ClusterReply) { c.Certificates[0].LeftSeconds = 29 * day }, healthGreen,
			[]string{"the certificate of metadata m1 expires on", "moraine cert renew DIR m1"}},
		{"a certificate expires within 7 days", func(c *wire.ClusterReply) { c.Certificates[0].LeftSeconds = 7*day - 1 }, healthDegraded,
			[]string{"the certificate of metadata m1 expires on", "within 7 days"}},
		{"a gateway's certificate has expired", func(c *wire.ClusterReply) {
			c.Certificates = append(c.Certificates, &wire.ServerCertificate{Role: "gateway", Node: "s1", LeftSeconds: -5})
		}, healthDegraded, []string{"the certificate of gateway s1 has expired"}},
		{"a certificate is not known", func(c *wire.ClusterReply) { c.Certificates = c.Certificates[1:] }, healthUnknown,
			[]string{"it is not known yet when the certificate of m1 expires"}},
		{"there are no certificates", func(c *wire.ClusterReply) { c.Certificates, c.Insecure = nil, true }, healthGreen, nil},
		{"the bucket hangs", func(c *wire.ClusterReply) {
			c.Buckets = []*wire.BucketStatus{{Bucket: "s3://b", Hosts: 6, Answered: 5, Failed: 1, Error: "timed out", Host: "n4", FailingMillis: 9500}}
		}, healthDegraded, []string{"bucket s3://b does not answer 1 of 6 hosts, for 10 s (n4: timed out)"}},
		{"no host serves a bucket with objects", func(c *wire.ClusterReply) { c.Buckets = []*wire.BucketStatus{{Bucket: "s3://b"}} }, healthDegraded,
			[]string{"no host that is up serves bucket s3://b, which has objects"}},
		{"objects of evicted files are gone", func(c *wire.ClusterReply) { c.LostObjects = 2 }, healthCritical,
			[]string{"2 objects are not in the bucket as recorded, and evicted files need them", "moraine cluster lost"}},
		{"the copy of a file is gone", func(c *wire.ClusterReply) { c.BadObjects = 1 }, healthDegraded,
			[]string{"1 object is not in the bucket as recorded", "moraine flush"}},
		{"a flush is blocked", func(c *wire.ClusterReply) { c.StuckMoves = 1 }, healthDegraded,
			[]string{"1 job fails between the cluster and its bucket again and again", "moraine tier status", "moraine job ls"}},
		{"the only metadata server waits for its disk", func(c *wire.ClusterReply) { c.Metadata[0].Stalled = "the disk of the log hangs" }, healthCritical,
			[]string{"metadata server m1 waits for its disk, and no other can lead: nothing can be written (the disk of the log hangs)"}},
		{"nobody has tried the bucket", func(c *wire.ClusterReply) { c.Buckets = []*wire.BucketStatus{{Bucket: "s3://b", Hosts: 6}} }, healthUnknown,
			[]string{"it is not known yet whether bucket s3://b answers: 0 of 6 hosts"}},
		{"the bucket answers", func(c *wire.ClusterReply) {
			c.Buckets = []*wire.BucketStatus{{Bucket: "s3://b", Hosts: 6, Answered: 6}}
		}, healthGreen, nil},
		{"the metadata is not checked yet", func(c *wire.ClusterReply) { c.Check.Done = false }, healthUnknown, []string{"its first check is under way"}},
		{"nothing is said of checks", func(c *wire.ClusterReply) { c.Check = nil }, healthUnknown, []string{"it is not known whether the metadata is consistent"}},
		{"the metadata does not fit", func(c *wire.ClusterReply) { c.Check.Problems, c.Check.Found = 2, []string{"inode 7"} }, healthDegraded,
			[]string{"found 2 problems, the first: inode 7", "moraine fsck --metadata"}},
		{"a check fails", func(c *wire.ClusterReply) { c.Check.Error = "read: EIO" }, healthDegraded, []string{"could not be checked: read: EIO"}},
		{"a check is overdue", func(c *wire.ClusterReply) { c.Check.Overdue = true }, healthDegraded, []string{"overdue"}},
		{"checks are off", func(c *wire.ClusterReply) { c.Check.Enabled, c.Check.Done = false, false }, healthGreen, []string{"does not check the metadata by itself"}},
		{"many ended grants", func(c *wire.ClusterReply) { c.EndedGrants = 20_000 }, healthGreen, []string{"20000 ranges of ended grants"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := sixHosts(0, wire.DeviceState_DEVICE_STATE_IN)
			row.change(c)
			s := judge(c)
			text := strings.Join(slices.Concat(s.Findings, s.Survives, s.Notes), "\n")
			require.Equal(t, row.health, s.Health, text)
			for _, want := range row.says {
				require.Contains(t, text, want)
			}
			require.Contains(t, text, "full protection of its scheme:")
			out, err := json.Marshal(s)
			require.NoError(t, err)
			require.NotContains(t, string(out), "null")
		})
	}
}

// TestADeviceThatIsOutHasNoUsage: the sums leave out the last report of a device that is
// out or retired.
func TestADeviceThatIsOutHasNoUsage(t *testing.T) {
	for _, state := range []wire.DeviceState{wire.DeviceState_DEVICE_STATE_OUT, wire.DeviceState_DEVICE_STATE_RETIRED} {
		c := fillDevices(sixHosts(0, wire.DeviceState_DEVICE_STATE_IN), 0)
		d := c.Topology.Hosts[0].Devices[0]
		d.State, d.Chunks = state, 77
		s := judge(c)
		require.EqualValues(t, 5<<39, s.Used, state)
		require.EqualValues(t, 5<<40, s.Capacity, state)
		require.Zero(t, s.Hosts[0].Used+s.Hosts[0].Chunks, state)
	}
}
