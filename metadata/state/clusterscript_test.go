package state_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// TestClusterTranscripts replays testdata/cluster: hosts and devices, repair
// and jobs. Each line is one command; after each file the state is checked.
func TestClusterTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/cluster", func(t *testing.T, file string) {
		s := &clusterScript{bench: newBench(t), stripes: map[string]uint64{}}
		s.c = s.open(nil)
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			var out strings.Builder
			for line := range strings.SplitSeq(d.Input, "\n") {
				verb, rest, _ := strings.Cut(line, " ")
				fmt.Fprintln(&out, s.run(verb, words(rest)))
			}
			s.check()
			return out.String()
		})
		s.t = t
		s.replays()
		if *rewriteLogs {
			s.writeLog("v1-cluster-" + filepath.Base(file))
		}
	})
}

// clusterScript interprets the lines.
type clusterScript struct {
	*bench
	c       *client
	stripes map[string]uint64
	repair  uint64 // the last repair job made
}

// words splits a line into its bare words, under "", and its key=value ones.
func words(line string) map[string]string {
	out := map[string]string{}
	for _, w := range strings.Fields(line) {
		k, v, ok := strings.Cut(w, "=")
		if !ok {
			k, v = "", strings.TrimSpace(out[""]+" "+w)
		}
		out[k] = v
	}
	return out
}

func num(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

// jobID turns the small number of a transcript into a job's, jobName back.
func (s *clusterScript) jobID(name string) uint64 {
	if name == "last" {
		return s.repair
	}
	return uint64(moraine.MakeID(0, 1, num(name)))
}
func jobName(id uint64) uint64 {
	return moraine.ID(id).Counter()
}

func (s *clusterScript) run(verb string, w map[string]string) string {
	switch verb {
	case "register":
		return s.register(w)
	case "state":
		to := wire.DeviceState(wire.DeviceState_value["DEVICE_STATE_"+strings.ToUpper(w["to"])])
		return outcome(s.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{
			Device: uint32(num(w["device"])), State: to, Reason: w["reason"], AcceptLoss: w["accept-loss"] != ""}}}))
	case "hosts":
		return s.hosts()
	case "file":
		return s.file(w)
	case "rm":
		return outcome(s.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: s.c.root, Name: w[""]}}}))
	case "layout":
		st, err := fleet.StripeByID(s.m.View(s.kv), moraine.StripeID(s.stripes[w[""]]))
		if err != nil || st == nil {
			return fmt.Sprint("none ", err)
		}
		return fmt.Sprintf("v%d %v", st.Version, st.Layout().Devices)
	case "queue":
		return s.queue()
	case "tombstones":
		dels, err := fleet.Tombstones(s.m.View(s.kv), moraine.DeviceID(num(w["device"])), ^uint64(0), 100)
		if err == nil {
			var kept []*wire.Deletion
			kept, err = fleet.KeptTombstones(s.m.View(s.kv), moraine.DeviceID(num(w["device"])), ^uint64(0), 0, 0, 100)
			dels = append(dels, kept...)
		}
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, d := range dels {
			out = append(out, fmt.Sprintf("%s/%d<v%d", s.stripeName(d.Stripe), d.Index, d.Below))
		}
		return orNothing(out)
	case "deleted":
		return outcome(s.as(w["as"], "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_DeletedChunks{DeletedChunks: &wire.DeletedChunks{
			Deleted: []*wire.Deletion{{Device: uint32(num(w["device"])), Stripe: s.stripes[w["stripe"]], Index: uint32(num(w["index"])), Below: uint32(num(w["below"]))}}}}}))
	case "bad":
		return outcome(s.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: &wire.ReportBadChunks{Chunks: []*wire.BadChunk{{
			Stripe: s.stripes[w["stripe"]], Index: uint32(num(w["index"])), Device: uint32(num(w["device"])), Version: uint32(num(w["version"])), Kind: uint32(kindNamed(w["kind"]))}}}}}))
	case "classify":
		return s.classify(w)
	case "tick":
		for n := num(w[""]); n > 0; n -= min(n, 1000) {
			s.tick(min(n, 1000))
		}
		return "ok"
	case "run":
		return s.runLeaderJobs()
	case "expire":
		resp := s.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{s.c.id}}}}).Response
		s.c = s.open(nil)
		return outcome(resp)
	case "counters":
		c, err := kvtx.ReadCounters(s.m.View(s.kv))
		if err != nil {
			return err.Error()
		}
		spare, _ := fleet.StripesBySpare(s.m.View(s.kv))
		running, _ := fleet.RepairRunning(s.m.View(s.kv))
		return fmt.Sprintf("stripes %d queued %d running %d lost %d spare %v pending %d leaked %d", c.Stripes, c.RepairQueued, running, c.LostStripes, spare[:4], c.PendingBytes, c.LeakedBytes)
	}
	return s.runJobVerb(verb, w)
}

func kindNamed(name string) moraine.Kind {
	for k := moraine.Kind(0); k < 64; k++ {
		if strings.ReplaceAll(k.String(), " ", "-") == name {
			return k
		}
	}
	return moraine.Internal
}

// register host=n1 devices=a,b:EPOCH rack=r
func (s *clusterScript) register(w map[string]string) string {
	h := &wire.Host{Id: w["host"], Rack: w["rack"], Addresses: []string{w["host"] + ":1"}}
	for name := range strings.SplitSeq(w["devices"], ",") {
		if name == "" {
			continue
		}
		name, epoch, _ := strings.Cut(name, ":")
		uuid := make([]byte, 16)
		copy(uuid, name)
		h.Devices = append(h.Devices, &wire.Device{Uuid: uuid, Capacity: 100, Epoch: num(epoch)})
	}
	as := w["host"]
	if w["as"] != "" {
		as = w["as"]
	}
	resp := s.as(as, "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{Host: h}}})
	if resp.GetError() != nil {
		return outcome(resp)
	}
	var out []string
	for _, d := range resp.GetRegisterHost().GetDevices() {
		out = append(out, fmt.Sprintf("%d:%s:epoch%d", d.Id, stateName(d.State), d.Epoch))
	}
	return orNothing(out)
}

func stateName(st wire.DeviceState) string {
	return strings.ToLower(strings.TrimPrefix(st.String(), "DEVICE_STATE_"))
}

func (s *clusterScript) hosts() string {
	hosts, err := fleet.Hosts(s.m.View(s.kv))
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, h := range hosts {
		line := h.Id
		if h.Rack != "" {
			line += "@" + h.Rack
		}
		for _, d := range h.Devices {
			line += fmt.Sprintf(" %d:%s", d.Id, stateName(d.State))
			if d.Reason != "" {
				line += fmt.Sprintf("(%s)", d.Reason)
			}
		}
		out = append(out, line)
	}
	scheme, _ := fleet.DefaultScheme(s.m.View(s.kv))
	return strings.Join(append(out, "default "+scheme.String()), "\n")
}

// file NAME on=1,2,3 writes a file of one stripe; with six devices 4+2.
func (s *clusterScript) file(w map[string]string) string {
	var devices []uint32
	for d := range strings.SplitSeq(w["on"], ",") {
		devices = append(devices, uint32(num(d)))
	}
	attr := s.ok(s.c.create(&wire.Create{Parent: s.c.root, Type: wire.FileType_FILE_TYPE_REGULAR, Unlinked: true})).GetEntry().GetAttr()
	id := s.c.grant(0, 1)
	s.stripes[w[""]] = id
	resp := s.c.commit(&wire.Commit{Inode: attr.Inode, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: uint32(moraine.NVMe),
		Stripes: []*wire.Stripe{stripe(id, 4096, devices...)}, Extents: []*wire.Extent{extent(0, 4096, id, 0)},
		Link: &wire.LinkTarget{Parent: s.c.root, Name: w[""]}})
	if resp.GetError() != nil {
		return outcome(resp)
	}
	return fmt.Sprintf("ok: protects %d degraded %d", resp.GetCommit().Protects, resp.GetCommit().Degraded)
}

func (s *clusterScript) stripeName(id uint64) string {
	for name, have := range s.stripes {
		if have == id {
			return name
		}
	}
	return "?"
}

func (s *clusterScript) queue() string {
	tasks, _, err := fleet.RepairQueue(s.m.View(s.kv), fleet.RepairCursor{}, 100, 0)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, t := range tasks {
		out = append(out, fmt.Sprintf("%s: %s, missing %03b, moving %03b", s.stripeName(t.Stripe.Id), t.Reason, t.Missing, t.Moving))
	}
	if out == nil {
		return "empty"
	}
	return strings.Join(out, "\n")
}

func (s *clusterScript) classify(w map[string]string) string {
	older := ^uint64(0)
	if w["young"] != "" {
		older = 0
	}
	v, err := fleet.ClassifyChunk(s.m.View(s.kv), moraine.DeviceID(num(w["device"])), &wire.ChunkReport{Stripe: s.stripes[w["stripe"]],
		Index: uint32(num(w["index"])), Version: uint32(num(w["version"])), Crc: uint32(s.stripes[w["stripe"]])*31 + uint32(num(w["index"])) + uint32(num(w["off"]))}, older)
	if err != nil {
		return err.Error()
	}
	out := [...]string{"live", "damaged", "pending", "dead", "unknown"}[v.Fate]
	if v.Below != 0 {
		out += fmt.Sprintf(" below v%d", v.Below)
	}
	if v.Unsettled != 0 {
		out += " unsettled"
	}
	return out
}

func (s *clusterScript) runLeaderJobs() string {
	pieces := 0
	for {
		jobs, err := jobs.PendingJobs(s.m.View(s.kv), []wire.JobKind{wire.JobKind_JOB_KIND_SCAN_DEVICE, wire.JobKind_JOB_KIND_REMOVE_TREE, wire.JobKind_JOB_KIND_DROP_TABLES}, 10)
		if err != nil {
			return err.Error()
		}
		if len(jobs) == 0 {
			return fmt.Sprint(pieces, " pieces")
		}
		s.ok(s.apply(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: jobs[0].Id, Limit: 8}}}).Response)
		pieces++
	}
}

// intents reads a=STRIPE/INDEX>DEVICE@VERSION,...
func (s *clusterScript) intents(list string) []*wire.Intent {
	var out []*wire.Intent
	for one := range strings.SplitSeq(list, ",") {
		if one == "" {
			continue
		}
		name, rest, _ := strings.Cut(one, "/")
		index, rest, _ := strings.Cut(rest, ">")
		device, version, _ := strings.Cut(rest, "@")
		out = append(out, &wire.Intent{Stripe: s.stripes[name], Index: uint32(num(index)), Device: uint32(num(device)), Version: uint32(num(version))})
	}
	return out
}

func (s *clusterScript) intentNames(list []*wire.Intent) string {
	var out []string
	for _, in := range list {
		out = append(out, fmt.Sprintf("%s/%d>%d@%d", s.stripeName(in.Stripe), in.Index, in.Device, in.Version))
	}
	return orNothing(out)
}

func (s *clusterScript) runJobVerb(verb string, w map[string]string) string {
	as := w["as"]
	if as == "" {
		as = "n1"
	}
	send := func(req *wire.MetaRequest) *wire.MetaResponse { return s.as(as, "chunkserver", req) }
	switch verb {
	case "repair": // repair a b intents=...
		job := &wire.Job{Kind: wire.JobKind_JOB_KIND_REPAIR}
		intents := s.intents(w["intents"])
		for name := range strings.SplitSeq(w[""], " ") {
			task := &wire.RepairTask{Stripe: &wire.Stripe{Id: s.stripes[name]}}
			for _, in := range intents {
				if in.Stripe == task.Stripe.Id {
					task.Intents = append(task.Intents, in)
				}
			}
			job.Repairs = append(job.Repairs, task)
		}
		resp := s.apply(&statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{job}}}}).Response
		for _, j := range resp.GetJobs().GetJobs() {
			s.repair = j.Id
		}
		return s.jobs(resp)
	case "lease":
		kinds := []wire.JobKind{wire.JobKind_JOB_KIND_REPAIR, wire.JobKind_JOB_KIND_COMMIT_STEP}
		if w["kind"] != "" {
			kinds = []wire.JobKind{wire.JobKind(wire.JobKind_value["JOB_KIND_"+strings.ToUpper(w["kind"])])}
		}
		return s.jobs(send(&wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{Host: as, Kinds: kinds, Max: 10}}}))
	case "renew":
		return outcome(send(&wire.MetaRequest{Op: &wire.MetaRequest_RenewJob{RenewJob: &wire.RenewJob{Id: s.jobID(w["job"]), LeaseEpoch: num(w["epoch"]), Done: num(w["done"])}}}))
	case "finish":
		return outcome(send(&wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: s.jobID(w["job"]), LeaseEpoch: num(w["epoch"]), Error: w["error"], Final: w["final"] != ""}}}))
	case "cancel":
		return outcome(send(&wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: s.jobID(w["job"])}}}))
	case "begin":
		resp := send(&wire.MetaRequest{Op: &wire.MetaRequest_BeginRepair{BeginRepair: &wire.BeginRepair{Job: s.jobID(w["job"]), LeaseEpoch: num(w["epoch"]), Intents: s.intents(w["intents"])}}})
		if resp.GetError() != nil {
			return outcome(resp)
		}
		return s.intentNames(resp.GetBeginRepair().GetIntents())
	case "assign":
		resp := s.apply(&statepb.Command{Op: &statepb.Command_AssignIntents{AssignIntents: &statepb.AssignIntents{Job: s.jobID(w["job"]), Intents: s.intents(w["intents"])}}}).Response
		if resp.GetError() != nil {
			return outcome(resp)
		}
		return s.intentNames(resp.GetBeginRepair().GetIntents())
	case "publish":
		resp := send(&wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{Job: s.jobID(w["job"]), LeaseEpoch: num(w["epoch"]), Intents: s.intents(w["intents"])}}})
		if resp.GetError() != nil {
			return outcome(resp)
		}
		r := resp.GetCommitRepair()
		var stale []string
		for _, id := range r.Stale {
			stale = append(stale, s.stripeName(id))
		}
		slices.Sort(stale)
		return fmt.Sprintf("committed %d, stale %v", r.Committed, stale)
	case "giveup":
		return outcome(send(&wire.MetaRequest{Op: &wire.MetaRequest_EndIntents{EndIntents: &wire.EndIntents{Intents: s.intents(w["intents"])}}}))
	case "jobs":
		return s.jobs(s.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Ended: w["ended"] != ""}}}))
	case "report": // report device=1 past=now|INDEX
		started := s.index
		if w["past"] != "now" {
			started = num(w["past"])
		}
		return outcome(s.apply(&statepb.Command{Op: &statepb.Command_CompleteReport{CompleteReport: &statepb.CompleteReport{
			Device: uint32(num(w["device"])), PassStarted: started, UnknownBytes: num(w["unknown"]), UnknownChunks: min(num(w["unknown"]), 1)}}}).Response)
	}
	return "unknown verb " + verb
}

func (s *clusterScript) jobs(resp *wire.MetaResponse) string {
	if resp.GetError() != nil {
		return outcome(resp)
	}
	var out []string
	for _, j := range resp.GetJobs().GetJobs() {
		kind := strings.ToLower(strings.TrimPrefix(j.Kind.String(), "JOB_KIND_"))
		line := fmt.Sprintf("job %d %s %s", jobName(j.Id), kind, strings.ToLower(strings.TrimPrefix(j.State.String(), "JOB_STATE_")))
		if j.Holder != "" {
			line += fmt.Sprintf(" by %s epoch %d", j.Holder, j.LeaseEpoch)
		}
		if j.LeaseUntil > 0 {
			line += fmt.Sprintf(" until %d", j.LeaseUntil)
		}
		if j.NotBefore > 0 {
			line += fmt.Sprintf(" not before %d", j.NotBefore)
		}
		if j.Error != "" {
			line += fmt.Sprintf(" error %q", j.Error)
		}
		line += ": " + j.Subject
		for _, r := range j.Repairs {
			line += fmt.Sprintf("\n  %s v%d %s: %s", s.stripeName(r.Stripe.Id), r.Stripe.Version, r.Reason, s.intentNames(r.Intents))
		}
		out = append(out, line)
	}
	if out == nil {
		return "none"
	}
	return strings.Join(out, "\n")
}
