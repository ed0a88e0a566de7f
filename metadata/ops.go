package metadata

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/leases"
	"github.com/morainefs/moraine/metadata/lockwait"
	"github.com/morainefs/moraine/metadata/members"
	"github.com/morainefs/moraine/metadata/repair"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// op is one kind of request: its properties, and what serves it here.
type op struct {
	*ops.Op
	may who
	// since is the feature level of the request; 0 is the first. Below it the leader proposes
	// nothing, because a server of an older build would stop.
	since uint64
	service
	// ok counts requests answered without an error; counts has all, by outcome.
	ok     prometheus.Counter
	counts *opCounts
}

// service is what answers a request: the leader or, if the request has Routing ANY_SERVER, any
// server.
type service struct {
	serve serveFunc
	local func(*Server, context.Context, *lead.Call) (*wire.MetaResponse, error)
}

type opCounts struct{ answered, failed atomic.Uint64 }

type serveFunc func(*leader, context.Context, *lead.Call) (*wire.MetaResponse, error)

// inLeases, and the functions below, let a part of the leader serve a request.
func inLeases(serve func(*leases.Keeper, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.leases, ctx, c)
	}
}

func inLockWaits(serve func(*lockwait.Queue, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.locks, ctx, c)
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

func byDelegations(serve func(*delegator, context.Context, *lead.Call) (*wire.MetaResponse, error)) serveFunc {
	return func(l *leader, ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
		return serve(l.delegations, ctx, c)
	}
}

// served names what serves a request. A READ that is not listed is answered from the state, and a
// COMMAND that is not listed is proposed as it came.
var served = map[string]service{
	"open_session":  {serve: bySessions((*sessionDesk).openSession)},
	"renew_session": {serve: bySessions((*sessionDesk).renewSession)},
	"get_cluster":   {serve: (*leader).getCluster},
	"get_topology":  {serve: inFleet((*fleet.Fleet).GetTopology)},

	"create":            {serve: (*leader).create},
	"grant":             {serve: (*leader).grant},
	"place":             {serve: (*leader).place},
	"commit":            {serve: (*leader).commit},
	"get_extents":       {serve: (*leader).getExtents},
	"report_bad_chunks": {serve: (*leader).reportBadChunks},

	"register_host":   {serve: inFleet((*fleet.Fleet).RegisterHost)},
	"heartbeat":       {serve: inFleet((*fleet.Fleet).Heartbeat)},
	"report_chunks":   {serve: inReports((*repair.Reports).ReportChunks)},
	"deleted_chunks":  {serve: inFleet((*fleet.Fleet).DeletedChunks)},
	"settle_chunks":   {serve: inFleet((*fleet.Fleet).SettleChunks)},
	"set_maintenance": {serve: inFleet((*fleet.Fleet).SetMaintenance)},
	"start_scrub":     {serve: inFleet((*fleet.Fleet).StartScrub)},
	"list_quarantine": {serve: inReports((*repair.Reports).ListQuarantine)},
	"check_chunks":    {serve: inReports((*repair.Reports).CheckChunks)},

	"lease_jobs":    {serve: byJobs((*jobDesk).leaseJobs)},
	"list_jobs":     {serve: (*leader).listJobs},
	"begin_repair":  {serve: inQueue((*repair.Queue).BeginRepair)},
	"commit_repair": {serve: inQueue((*repair.Queue).CommitRepair)},
	"set_rebalance": {serve: inRebalancer((*repair.Rebalancer).SetRebalance)},

	"begin_step":   {serve: (*leader).beginStep},
	"get_step":     {serve: (*leader).getStep},
	"resolve_step": {serve: (*leader).resolveStep},

	"queue_move":     {serve: (*leader).queueMove},
	"report_objects": {serve: inObjects((*fleet.ObjectChecks).ReportObjects)},
	"check_objects":  {serve: inObjects((*fleet.ObjectChecks).CheckObjects)},

	"await_lock": {serve: inLockWaits((*lockwait.Queue).Await)},

	"delegate":       {serve: byDelegations((*delegator).delegate)},
	"end_delegation": {serve: byDelegations((*delegator).end)},
	"batch":          {serve: byDelegations((*delegator).batch)},

	"leases": {serve: inLeases((*leases.Keeper).Poll)},
	"watch":  {serve: (*leader).watch},

	"get_leader":     {local: (*Server).getLeader},
	"get_member":     {local: (*Server).getMember},
	"member_beat":    {local: (*Server).memberBeat},
	"get_members":    {serve: inMembers((*members.Group).GetMembers)},
	"add_member":     {serve: inMembers((*members.Group).AddMember)},
	"remove_member":  {serve: inMembers((*members.Group).RemoveMember)},
	"finish_upgrade": {serve: inMembers((*members.Group).FinishUpgrade)},
	"read_backup":    {serve: byBackups((*backupDesk).readBackup)},
	"revoke_cert":    {serve: (*leader).revokeCert},
	"list_revoked":   {serve: (*leader).listRevoked},
}

// serviceOf returns what serves a request. It panics if nothing does: this is a mistake in the
// table.
func serviceOf(o *ops.Op) service {
	s, listed := served[o.Name]
	switch {
	case !listed && o.Effect == wire.Operation_READ:
		s.serve = (*leader).read
	case !listed && o.Effect == wire.Operation_COMMAND:
		s.serve = (*leader).Mutate
	case !listed:
		panic(fmt.Sprintf("metadata/ops.go: say in served what answers %s, an %v", o.Name, o.Effect))
	case (s.local != nil) != (o.Routing == wire.Operation_ANY_SERVER):
		panic(fmt.Sprintf("metadata/ops.go: %s has routing %v: it is served by local if that is ANY_SERVER, and by serve if not", o.Name, o.Routing))
	}
	return s
}

// opTable has the op of each request that this build knows, in the order of package ops. One of a
// build that imitates a later release follows, in upgrade tests.
type opTable []op

// newOpTable returns the table of a build that supports feature levels up to level.
func newOpTable(m *lead.Metrics, level uint64) opTable {
	t := make(opTable, 0, len(ops.All())+1)
	used := 0
	add := func(o op) {
		o.may, o.ok, o.counts = callersOf(o.Op), m.Requests.WithLabelValues(o.Name, "ok"), &opCounts{}
		t = append(t, o)
	}
	for _, o := range ops.All() {
		add(op{Op: o, service: serviceOf(o)})
		if _, listed := served[o.Name]; listed {
			used++
		}
	}
	if used != len(served) {
		panic("metadata/ops.go: served has a name that is no request in metadata.proto")
	}
	if level >= state.FutureLevel {
		add(op{Op: &ops.Op{Name: "future", Effect: wire.Operation_COMMAND, Callers: wire.Operation_ADMINS}, since: state.FutureLevel, service: service{serve: (*leader).Mutate}})
	}
	return t
}

// of finds the op of a request; nil if this build does not know it.
func (t opTable) of(req *wire.MetaRequest) *op {
	if o := ops.Of(req); o != nil {
		return &t[o.Index]
	}
	if len(t) > len(ops.All()) && state.IsFuture(req) {
		return &t[len(ops.All())]
	}
	return nil
}

// mix returns how often each request was answered since the process started, most frequent first.
func (t opTable) mix() []*wire.CommandCount {
	var out []*wire.CommandCount
	for i := range t {
		o := &t[i]
		n, failed := o.counts.answered.Load(), o.counts.failed.Load()
		if n+failed > 0 {
			out = append(out, &wire.CommandCount{Name: o.Name, Count: n, Failed: failed, Reads: o.IsReadOnly()})
		}
	}
	slices.SortStableFunc(out, func(a, b *wire.CommandCount) int { return cmp.Compare(b.Count, a.Count) })
	return out
}
