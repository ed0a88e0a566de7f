package metadata_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/metadatatest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// TestRoles makes one request of each class as each role. An allowed request may still fail, but
// never with PermissionDenied.
func TestRoles(t *testing.T) {
	requests := []struct {
		name string
		req  func() *wire.MetaRequest
		may  string // roles that may send it: c client, g gateway, s chunkserver, a admin
	}{
		{"read", func() *wire.MetaRequest { return lookup("x") }, "cga"},
		{"topology", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_GetTopology{GetTopology: &wire.GetTopology{}}}
		}, "cgsa"},
		{"cluster", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}}
		}, "cgsa"},
		{"member", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_GetMember{GetMember: &wire.GetMember{}}}
		}, "cgsa"},
		{"mutation", func() *wire.MetaRequest { return mkdir(root, "d") }, "cga"},
		{"link", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_Link{Link: &wire.Link{}}}
		}, "cga"},
		{"attribute", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_SetXattr{SetXattr: &wire.SetXattr{}}}
		}, "cga"},
		{"move", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{}}}
		}, "cga"},
		{"policy", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{}}}
		}, "cga"},
		{"usage", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_GetUsage{GetUsage: &wire.GetUsage{}}}
		}, "cga"},
		{"quota", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_SetQuota{SetQuota: &wire.SetQuota{}}}
		}, "a"},
		{"quotas", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_ListQuotas{ListQuotas: &wire.ListQuotas{}}}
		}, "cga"},
		{"clone tree", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{}}}
		}, "cga"},
		{"concat", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_Concat{Concat: &wire.Concat{}}}
		}, "cga"},
		{"recount", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_Recount{Recount: &wire.Recount{}}}
		}, "a"},
		{"object", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_BeginObject{BeginObject: &wire.BeginObject{}}}
		}, "sa"},
		{"flush", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_CommitFlush{CommitFlush: &wire.CommitFlush{}}}
		}, "sa"},
		{"stage", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_CommitStage{CommitStage: &wire.CommitStage{}}}
		}, "sa"},
		{"rewrite", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_CommitRewrite{CommitRewrite: &wire.CommitRewrite{}}}
		}, "sa"},
		{"evict", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_CommitEvict{CommitEvict: &wire.CommitEvict{}}}
		}, "sa"},
		{"delete object", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_DeletedObject{DeletedObject: &wire.DeletedObject{}}}
		}, "sa"},
		{"jobs", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{}}}
		}, "cga"},
		{"register", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{Host: &wire.Host{}}}}
		}, "sa"},
		{"heartbeat", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{}}}
		}, "sa"},
		{"report", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: &wire.ReportChunks{}}}
		}, "a"}, // no host has device 0
		{"deleted", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_DeletedChunks{DeletedChunks: &wire.DeletedChunks{}}}
		}, "sa"},
		{"lease", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{}}}
		}, "sa"},
		{"commit repair", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{}}}
		}, "sa"},
		{"commit step", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_CommitStep{CommitStep: &wire.CommitStep{}}}
		}, "sa"},
		{"device state", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{}}}
		}, "a"},
		{"cancel job", func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{}}}
		}, "a"},
	}
	roles := map[string]transport.Role{
		"c": transport.RoleClient, "g": transport.RoleGateway, "s": transport.RoleChunkserver,
		"a": transport.RoleAdmin, "m": transport.RoleMetadata,
	}
	bubble(t, nil, func(c *cluster) {
		for letter, role := range roles {
			p := peer(role, "n-"+letter)
			var k *client
			if letter != "m" {
				k = c.open(p)
			}
			for _, r := range requests {
				req := r.req()
				var err error
				if k != nil {
					_, err = k.do(req)
				} else {
					_, err = c.do(p, req)
				}
				allowed := containsRole(r.may, letter)
				if denied := err != nil && moraine.KindOf(err) == moraine.PermissionDenied; denied == allowed {
					t.Errorf("%s as %s: allowed is %v, got %v", r.name, role, allowed, err)
				}
			}
		}
	})
}

func containsRole(may, letter string) bool {
	for _, r := range may {
		if string(r) == letter {
			return true
		}
	}
	return false
}

// TestEveryRequestIsServed checks the table of requests against the schema.
func TestEveryRequestIsServed(t *testing.T) {
	ops := (&wire.MetaRequest{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	for i := range ops.Len() {
		req := (&wire.MetaRequest{}).ProtoReflect()
		req.Set(ops.Get(i), req.NewField(ops.Get(i)))
		require.Equal(t, string(ops.Get(i).Name()), metadata.OpName(req.Interface().(*wire.MetaRequest)))
	}
	require.Empty(t, metadata.OpName(&wire.MetaRequest{}))
	bubble(t, nil, func(c *cluster) {
		_, err := c.do(peer(transport.RoleAdmin, "a1"), &wire.MetaRequest{})
		require.ErrorIs(t, err, moraine.Unimplemented)
		other := lookup("x")
		other.Partition = 7
		_, err = c.do(peer(transport.RoleAdmin, "a1"), other)
		require.ErrorIs(t, err, moraine.Misrouted)
	})
}

func TestANodeSpeaksOnlyForItself(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		p := peer(transport.RoleChunkserver, "n1")
		for _, req := range []*wire.MetaRequest{
			{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{Host: &wire.Host{Id: "n2"}}}},
			{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{Host: "n2"}}},
			{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{Host: "n2"}}},
		} {
			_, err := c.do(p, req)
			require.ErrorIs(t, err, moraine.PermissionDenied)
		}
		k := c.open(peer(transport.RoleClient, "c1"))
		k.peer = peer(transport.RoleClient, "c2")
		_, err := k.do(mkdir(root, "stolen"))
		require.ErrorIs(t, err, moraine.SessionExpired, "a session is its node's")
		require.Error(t, k.renew())
	})
}

func TestScopeAndReadOnly(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		admin := c.open(peer(transport.RoleAdmin, "a1"))
		resp, err := admin.do(mkdir(root, "team"))
		require.NoError(t, err)
		team := resp.GetEntry().Attr.Inode
		_, err = admin.do(mkdir(root, "other"))
		require.NoError(t, err)

		confined := peer(transport.RoleClient, "c1")
		confined.Scope = "/team"
		k := c.open(confined)
		require.Equal(t, team, k.reply.Root)
		var token wire.SessionToken
		var claims wire.TokenClaims
		require.NoError(t, proto.Unmarshal(k.reply.Token, &token))
		require.NoError(t, proto.Unmarshal(token.Claims, &claims))
		require.False(t, claims.AllTenants, "its token admits to its tenant's chunks only")
		require.Len(t, claims.Tenants, 1)
		_, err = k.do(mkdir(team, "mine"))
		require.NoError(t, err)
		_, err = k.do(mkdir(root, "not mine"))
		require.ErrorIs(t, err, moraine.NotFound)
		_, err = k.ask(lookup("other"))
		require.ErrorIs(t, err, moraine.NotFound)

		wider := &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: make([]byte, 16), Scope: "/"}}}
		_, err = c.do(confined, wider)
		require.ErrorIs(t, err, moraine.PermissionDenied)

		reader := peer(transport.RoleClient, "c2")
		reader.ReadOnly = true
		r := c.open(reader)
		_, err = r.do(mkdir(root, "no"))
		require.ErrorIs(t, err, moraine.ReadOnly)
		_, err = r.ask(lookup("other"))
		require.NoError(t, err)
	})
}

// The leader ignores reports of a caller confined to a tenant's tree about other tenants' stripes.
func TestBadChunksOfOthersArePassedOver(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		admin := c.open(peer(transport.RoleAdmin, "a1"))
		s := admin.write("f", nil) // in the default tenant
		_, err := admin.do(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
			Parent: root, Name: "team", Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755, Exclusive: true, Tenant: "team"}}})
		require.NoError(t, err)
		confined := peer(transport.RoleClient, "c1")
		confined.Scope = "/team"
		for _, readOnly := range []bool{false, true} {
			confined.ReadOnly = readOnly
			_, err = c.open(confined).do(badChunk(s, 3))
			require.NoError(t, err)
			require.Empty(t, c.suspected(nodes...))
			require.Zero(t, c.cluster().RepairQueued)
		}
		reader := peer(transport.RoleClient, "c2")
		reader.ReadOnly = true
		_, err = c.open(reader).do(badChunk(s, 3))
		require.NoError(t, err)
		require.Len(t, c.suspected(nodes...), 1, "a session that may read it may report it")
		require.Zero(t, c.cluster().RepairQueued)
	})
}

func TestNearlyFullDiskTakesOnlyWhatFrees(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		k := c.open(peer(transport.RoleClient, "c1"))
		_, err := k.do(mkdir(root, "a"))
		require.NoError(t, err)
		c.group.Fail(metadatatest.Faults{LowSpace: true})
		_, err = k.do(mkdir(root, "b"))
		require.ErrorIs(t, err, moraine.NoSpace)
		_, err = k.ask(lookup("a"))
		require.NoError(t, err)
		_, err = k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: root, Name: "a", Directory: true}}})
		require.NoError(t, err)
		require.NoError(t, k.renew())
	})
}
