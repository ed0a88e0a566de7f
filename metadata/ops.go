package metadata

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/leases"
	"github.com/morainefs/moraine/metadata/members"
	"github.com/morainefs/moraine/metadata/repair"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// who is a set of roles of callers.
type who uint8

const (
	clients      who = 1 << iota // clients and gateways
	chunkservers                 // and their movers
	admins
	metadatas // metadata servers, about themselves
	anyone    = clients | chunkservers | admins
	people    = clients | admins // all except servers: see node.go
)

func roleOf(r transport.Role) who {
	switch r {
	case transport.RoleAdmin:
		return admins
	case transport.RoleChunkserver:
		return chunkservers
	case transport.RoleClient, transport.RoleGateway:
		return clients
	case transport.RoleMetadata:
		return metadatas
	default: // an unknown role may do nothing
		return 0
	}
}

// op describes one kind of request and who may send it.
type op struct {
	name string
	may  who
	// reads: the request changes neither the namespace nor content, so a read-only certificate
	// permits it.
	reads bool
	// session: the request needs a live session.
	session bool
	// grows: the request is refused while the metadata disk is nearly full.
	grows bool
	// unrouted: the request is answered whatever routing epoch its caller knows.
	unrouted bool
	// since is the feature level of the request; 0 is the first. Below it the leader proposes
	// nothing, because a server of an earlier build would stop.
	since uint64
	// snapshot: the state machine answers the request, and checks its session there.
	snapshot bool
	// serve answers the request.
	serve serveFunc
	// local answers the request instead of serve, also on a server that does not lead.
	local func(*Server, context.Context, *lead.Call) (*wire.MetaResponse, error)
	// ok counts requests answered without an error; counts has all, by outcome.
	ok     prometheus.Counter
	counts *opCounts
}

type opCounts struct{ answered, failed atomic.Uint64 }

type serveFunc func(*leader, context.Context, *lead.Call) (*wire.MetaResponse, error)

// inLeases, and the functions below, let a part of the leader serve a request.
func inLeases(serve func(*leases.Keeper, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.leases, ctx, c)
	}
}

func inFleet(serve func(*fleet.Fleet, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.fleet, ctx, c)
	}
}

func inObjects(serve func(*fleet.ObjectChecks, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.fleet.Objects, ctx, c)
	}
}

func inMembers(serve func(*members.Group, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.members, ctx, c)
	}
}

func inQueue(serve func(*repair.Queue, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.repair.Queue, ctx, c)
	}
}

func inRebalancer(serve func(*repair.Rebalancer, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.repair.Rebalancer, ctx, c)
	}
}

func inReports(serve func(*repair.Reports, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.repair.Reports, ctx, c)
	}
}

func bySessions(serve func(*sessionDesk, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.desk, ctx, c)
	}
}

func byJobs(serve func(*jobDesk, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.jobs, ctx, c)
	}
}

func byBackups(serve func(*backupDesk, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.backups, ctx, c)
	}
}

func reading(name string) op {
	return op{name: name, may: people, reads: true, snapshot: true, serve: (*leader).read}
}

// asking is a question answered from the leader's memory.
func asking(name string, serve serveFunc) op {
	return op{name: name, may: anyone, reads: true, serve: serve}
}

// growing is a mutation that may use more space; freeing is one that does not.
func growing(name string, serve serveFunc) op {
	return op{name: name, may: people, session: true, grows: true, serve: serve}
}

func freeing(name string) op {
	return op{name: name, may: people, session: true, serve: (*leader).Mutate}
}

// serving is a report of a chunkserver, or its mover, about itself.
func serving(name string, serve serveFunc) op {
	return op{name: name, may: chunkservers | admins, serve: serve}
}

// byMovers is an op that a chunkserver's mover needs too.
func byMovers(o op) op {
	o.may |= chunkservers
	return o
}

// opTable has the op of each request that this build knows, by its field number in
// wire.MetaRequest.
type opTable [1024]op

// newOpTable returns the table of a build that supports feature levels up to level.
func newOpTable(m *lead.Metrics, level uint64) *opTable {
	t := &opTable{
		10: unrouted(asking("open_session", bySessions((*sessionDesk).openSession))),
		11: unrouted(asking("renew_session", bySessions((*sessionDesk).renewSession))),
		12: {name: "close_session", unrouted: true, may: anyone, reads: true, session: true, serve: bySessions((*sessionDesk).closeSession)},
		13: unrouted(asking("get_cluster", (*leader).getCluster)),
		14: asking("get_topology", inFleet((*fleet.Fleet).GetTopology)),

		20: reading("lookup"),
		21: reading("walk"),
		22: byMovers(reading("get_attr")),
		23: reading("read_dir"),
		24: byMovers(growing("create", (*leader).create)),
		25: freeing("rename"),
		26: freeing("remove"),
		27: freeing("set_attr"),
		28: freeing("remove_tree"),
		29: growing("link", (*leader).Mutate),
		30: byMovers(freeing("release")),
		31: growing("set_xattr", (*leader).Mutate),
		32: reading("get_xattr"),

		40: byMovers(growing("grant", (*leader).grant)),
		41: byMovers(freeing("end_grant")),
		42: byMovers(growing("place", (*leader).place)),
		43: byMovers(growing("commit", (*leader).commit)),
		44: {name: "get_extents", may: anyone, reads: true, snapshot: true, serve: (*leader).getExtents},
		45: asking("report_bad_chunks", (*leader).reportBadChunks),
		46: growing("clone", (*leader).Mutate),

		60: serving("register_host", inFleet((*fleet.Fleet).RegisterHost)),
		61: serving("heartbeat", inFleet((*fleet.Fleet).Heartbeat)),
		62: serving("report_chunks", inReports((*repair.Reports).ReportChunks)),
		63: serving("deleted_chunks", inFleet((*fleet.Fleet).DeletedChunks)),
		64: {name: "set_device_state", may: admins, serve: (*leader).Mutate},

		80: serving("lease_jobs", byJobs((*jobDesk).leaseJobs)),
		81: serving("renew_job", (*leader).Mutate),
		82: serving("finish_job", (*leader).Mutate),
		83: {name: "list_jobs", may: people, reads: true, serve: (*leader).listJobs},
		84: {name: "cancel_job", may: admins, serve: (*leader).Mutate},
		85: serving("begin_repair", inQueue((*repair.Queue).BeginRepair)),
		86: serving("commit_repair", inQueue((*repair.Queue).CommitRepair)),
		87: serving("end_intents", (*leader).Mutate),

		100: {name: "open_run", may: people, session: true, grows: true, serve: (*leader).Mutate},
		101: growing("begin_step", (*leader).Mutate),
		102: growing("seal_part", (*leader).Mutate),
		103: asking("get_step", (*leader).getStep),
		104: serving("commit_step", (*leader).Mutate),
		105: freeing("abort_step"),
		106: reading("list_runs"),
		107: reading("list_steps"),
		108: {name: "resolve_step", may: people, serve: (*leader).resolveStep},
		109: freeing("remove_step"),
		110: byMovers(reading("list_parts")),
		680: {name: "lease_step", may: people, reads: true, session: true, since: kvtx.LevelRewrite, serve: (*leader).Mutate},
		681: {name: "release_step", may: people, reads: true, session: true, since: kvtx.LevelRewrite, serve: (*leader).Mutate},

		120: {name: "queue_move", may: anyone, grows: true, serve: (*leader).queueMove}, // a chunkserver has no session
		121: serving("begin_object", (*leader).Mutate),
		122: serving("end_object", (*leader).Mutate),
		123: serving("commit_flush", (*leader).Mutate),
		124: serving("move_object", (*leader).Mutate),
		125: serving("commit_evict", (*leader).Mutate),
		126: {name: "commit_stage", may: chunkservers | admins, session: true, serve: (*leader).Mutate},
		127: serving("deleted_object", (*leader).Mutate),
		132: serving("report_objects", inObjects((*fleet.ObjectChecks).ReportObjects)),
		133: {name: "check_objects", may: admins, reads: true, serve: inObjects((*fleet.ObjectChecks).CheckObjects)},
		134: reading("list_bad_objects"),
		128: byMovers(reading("get_object")),
		129: reading("get_tier"),
		130: growing("set_policy", (*leader).Mutate),
		131: reading("get_policy"),

		220: {name: "get_usage", may: people, reads: true, snapshot: true, since: kvtx.LevelUsage, serve: (*leader).read},
		221: {name: "set_quota", may: admins, grows: true, since: kvtx.LevelUsage, serve: (*leader).Mutate},
		222: reading("list_quotas"),
		224: {name: "clone_tree", may: people, session: true, grows: true, since: kvtx.LevelCloneTree, serve: (*leader).Mutate},
		223: {name: "recount", may: admins, grows: true, since: kvtx.LevelUsage, serve: (*leader).Mutate},
		201: {name: "leases", unrouted: true, may: people, reads: true, session: true, serve: inLeases((*leases.Keeper).Poll)},
		400: {name: "hold", may: people, session: true, since: kvtx.LevelHolds, serve: inLeases((*leases.Keeper).Hold)},
		401: {name: "end_hold", may: people, session: true, since: kvtx.LevelHolds, serve: (*leader).Mutate},
		402: {name: "batch", may: people, session: true, since: kvtx.LevelHolds, serve: (*leader).batch},
		202: {name: "watch", may: people, reads: true, serve: (*leader).watch},
		320: {name: "concat", may: people, session: true, grows: true, since: kvtx.LevelConcat, serve: (*leader).Mutate},
		321: {name: "raise_routing", may: admins, since: kvtx.LevelRouting, serve: (*leader).Mutate},
		341: {name: "list_quarantine", may: admins, reads: true, serve: inReports((*repair.Reports).ListQuarantine)},
		340: {name: "get_leader", may: anyone, reads: true, local: (*Server).getLeader},
		342: {name: "get_member", may: anyone, reads: true, local: (*Server).getMember},
		240: {name: "member_beat", may: metadatas | admins, local: (*Server).memberBeat},
		241: {name: "get_members", may: people, reads: true, serve: inMembers((*members.Group).GetMembers)},
		242: {name: "add_member", may: admins, serve: inMembers((*members.Group).AddMember)},
		243: {name: "remove_member", may: admins, serve: inMembers((*members.Group).RemoveMember)},
		244: {name: "finish_upgrade", may: admins, serve: inMembers((*members.Group).FinishUpgrade)},
		450: {name: "set_maintenance", may: admins, since: kvtx.LevelHosts, serve: inFleet((*fleet.Fleet).SetMaintenance)},
		451: {name: "set_host_state", may: admins, since: kvtx.LevelHosts, serve: (*leader).Mutate},
		460: {name: "settle_chunks", may: chunkservers | admins, since: kvtx.LevelMemory, serve: inFleet((*fleet.Fleet).SettleChunks)},
		461: {name: "list_memory", may: chunkservers | admins, reads: true, snapshot: true, serve: (*leader).read},
		462: reading("list_lost"),
		470: {name: "set_rebalance", may: admins, since: kvtx.LevelRebalance, serve: inRebalancer((*repair.Rebalancer).SetRebalance)},
		480: {name: "check_chunks", may: admins, reads: true, serve: inReports((*repair.Reports).CheckChunks)},
		481: {name: "drop_chunks", may: admins, since: kvtx.LevelDrops, serve: (*leader).Mutate},
		490: {name: "commit_rewrite", may: chunkservers | admins, session: true, since: kvtx.LevelRewrite, serve: (*leader).Mutate},
		452: {name: "start_scrub", may: admins, serve: inFleet((*fleet.Fleet).StartScrub)},
		620: {name: "revoke_cert", may: admins, grows: true, since: kvtx.LevelRewrite, serve: (*leader).revokeCert},
		621: {name: "list_revoked", may: admins, reads: true, serve: (*leader).listRevoked},
		245: {name: "read_backup", may: admins, reads: true, serve: byBackups((*backupDesk).readBackup)},
	}
	if level >= state.FutureLevel {
		t[state.FutureField] = op{name: "future", may: admins, since: state.FutureLevel, serve: (*leader).Mutate}
	}
	for i := range t {
		if t[i].name != "" {
			t[i].counts = &opCounts{}
			t[i].ok = m.Requests.WithLabelValues(t[i].name, "ok")
		}
	}
	return t
}

// mix returns how often each request was answered since the process started, most frequent first.
func (t *opTable) mix() []*wire.CommandCount {
	var out []*wire.CommandCount
	for i := range t {
		if t[i].name == "" {
			continue
		}
		n, failed := t[i].counts.answered.Load(), t[i].counts.failed.Load()
		if n+failed > 0 {
			out = append(out, &wire.CommandCount{Name: t[i].name, Count: n, Failed: failed, Reads: t[i].reads})
		}
	}
	slices.SortStableFunc(out, func(a, b *wire.CommandCount) int { return cmp.Compare(b.Count, a.Count) })
	return out
}

// of finds the op of a request; nil if this build does not know it.
func (t *opTable) of(req *wire.MetaRequest) *op {
	n := number(req)
	if int(n) >= len(t) || t[n].name == "" {
		return nil
	}
	return &t[n]
}

// number returns the field number of a request's op; 0 if it has none.
func number(req *wire.MetaRequest) protoreflect.FieldNumber {
	if f := wire.Op(req); f != nil {
		return f.Number()
	}
	if state.IsFuture(req) {
		return state.FutureField
	}
	return 0
}
