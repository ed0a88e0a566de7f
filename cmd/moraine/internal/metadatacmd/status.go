package metadatacmd

import (
	"fmt"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// metadataReport is what `metadata status` prints.
type metadataReport struct {
	Cluster      string         `json:"cluster"`
	Incarnation  uint64         `json:"incarnation"`
	FeatureLevel uint64         `json:"feature_level"`
	Leader       string         `json:"leader"`
	Term         uint64         `json:"term"`
	LeadsSeconds float64        `json:"leads_seconds"`
	LogLast      uint64         `json:"log_last"` // of the leader
	Commit       uint64         `json:"commit"`
	Sessions     uint64         `json:"sessions"`
	Leases       uint64         `json:"leases"`
	Servers      []memberReport `json:"servers"`
	Commands     []commandCount `json:"commands"`
}

type memberReport struct {
	memberRow
	ContactSeconds  float64 `json:"contact_seconds"` // negative: it has not answered this leader
	Term            uint64  `json:"term"`
	Applied         uint64  `json:"applied"`
	LogEntries      uint64  `json:"log_entries"`
	LogBytes        uint64  `json:"log_bytes"`
	Snapshot        uint64  `json:"snapshot"`
	SnapshotBytes   uint64  `json:"snapshot_bytes"`
	SnapshotSeconds float64 `json:"snapshot_age_seconds"` // negative: not known
	Apply           latency `json:"apply"`
	Append          latency `json:"append"`
	LowSpace        bool    `json:"low_space"`
	WriteSeconds    float64 `json:"write_waits_seconds"` // for how long a write to the log has not returned
}

// hangsAfter is how many seconds a write to the log takes before it counts as hanging.
const hangsAfter = 1

type latency struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50_seconds"`
	P99   float64 `json:"p99_seconds"`
	Max   float64 `json:"max_seconds"`
}

type commandCount struct {
	Name   string `json:"name"`
	Count  uint64 `json:"count"`
	Failed uint64 `json:"failed"`
	Reads  bool   `json:"reads"` // it changes nothing
}

func latencyOf(l *wire.Latencies) latency {
	return latency{l.GetCount(), float64(l.GetP50Micros()) / 1e6, float64(l.GetP99Micros()) / 1e6, float64(l.GetMaxMicros()) / 1e6}
}

// String writes median, 99th percentile and maximum; "-" where nothing was counted.
func (l latency) String() string {
	if l.Count == 0 {
		return "-"
	}
	d := func(s float64) time.Duration {
		return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
	}
	return fmt.Sprintf("%v / %v", d(l.P50), d(l.P99))
}

func memberReportOf(m *wire.Member) memberReport {
	st := m.GetStatus()
	r := memberReport{memberRow: memberRowOf(m), ContactSeconds: float64(m.ContactMillis) / 1e3, Term: st.GetTerm(), Applied: st.GetApplied(),
		LogBytes: st.GetLogBytes(), Snapshot: st.GetSnapshotIndex(), SnapshotBytes: st.GetSnapshotBytes(),
		SnapshotSeconds: float64(st.GetSnapshotAgeMillis()) / 1e3, Apply: latencyOf(st.GetApply()), Append: latencyOf(st.GetAppend()),
		LowSpace: st.GetLowSpace(), WriteSeconds: float64(st.GetAppendWaitsMillis()) / 1e3}
	if st.GetLogLast() > 0 {
		r.LogEntries = st.LogLast - st.LogFirst + 1
	}
	return r
}

func metadataReportOf(reply *wire.MembersReply) metadataReport {
	r := metadataReport{Incarnation: reply.Incarnation, FeatureLevel: reply.FeatureLevel, Term: reply.Term,
		LeadsSeconds: float64(reply.LeadershipMillis) / 1e3, Commit: reply.Commit, Sessions: reply.Sessions, Leases: reply.Leases,
		Servers: []memberReport{}, Commands: []commandCount{}}
	if len(reply.Cluster) == len(moraine.UUID{}) {
		r.Cluster = moraine.UUID(reply.Cluster).String()
	}
	for _, m := range reply.Members {
		if m.Leader {
			r.Leader, r.LogLast = m.Id, m.GetStatus().GetLogLast()
		}
		r.Servers = append(r.Servers, memberReportOf(m))
	}
	for _, c := range reply.Commands {
		r.Commands = append(r.Commands, commandCount{c.Name, c.Count, c.Failed, c.Reads})
	}
	return r
}

// shownCommands bounds the requests that people see.
const shownCommands = 12

func newMetadataStatusCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the metadata servers: log, snapshots, latencies, sessions, requests",
		Long: `Show the leader and, of each metadata server:

  - its last entry, and the size of its log and its newest snapshot
  - the time to apply a batch of entries and to sync an append to the log, as median /
    99th percentile since the server started (at most a quarter too high)

The command also lists the requests that the leader answered since it started, changes
first. --json has them all.

Where no server leads, the command queries each server. It shows what each one that answers
knows, and why the others do not answer. The last line says what to do. The exit code is
then 1, and with --json "leader" is empty and "next" is that line.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			withLeader := func(reply *wire.MembersReply) error {
				r := metadataReportOf(reply)
				if env.Global.JSON {
					return cli.PrintJSON(env.Out, r)
				}
				printMetadata(env, r)
				return nil
			}
			return lookAtMetadata(cmd.Context(), env, withLeader, func(sv survey) error {
				if env.Global.JSON {
					return cli.PrintJSON(env.Out, sv)
				}
				return printSurvey(env, sv)
			})
		},
	}
}

func printMetadata(env *cli.Env, r metadataReport) {
	env.Note("%s leads in term %d, for %v; log up to %d, committed up to %d; feature level %d, incarnation %d; %d sessions, %d leases\n",
		r.Leader, r.Term, time.Duration(r.LeadsSeconds*float64(time.Second)).Round(time.Second), r.LogLast, r.Commit, r.FeatureLevel, r.Incarnation, r.Sessions, r.Leases)
	var rows []table.Row
	for _, s := range r.Servers {
		snapshot := "none"
		if s.Snapshot > 0 {
			snapshot = fmt.Sprintf("%d, %s", s.Snapshot, cli.Size(s.SnapshotBytes))
			if s.SnapshotSeconds >= 0 {
				snapshot += fmt.Sprintf(", %v old", time.Duration(s.SnapshotSeconds*float64(time.Second)).Round(time.Second))
			}
		}
		state := view.UpDown(s.Alive)
		if s.LowSpace {
			state += ", DISK NEARLY FULL"
		}
		if s.WriteSeconds >= hangsAfter {
			state += ", DISK HANGS"
		}
		rows = append(rows, table.Row{s.ID, s.Role, state, s.Lag, s.Applied, fmt.Sprintf("%d, %s", s.LogEntries, cli.Size(s.LogBytes)), snapshot, s.Apply, s.Append})
	}
	cli.PrintTable(env.Out, table.Row{"id", "role", "", "lacks", "applied", "log", "snapshot", "apply p50 / p99", "append p50 / p99"}, rows)
	env.Note("")
	rows = nil
	commands := mutationsFirst(r.Commands)
	for _, c := range commands[:min(len(commands), shownCommands)] {
		rows = append(rows, table.Row{c.Name, c.Count, c.Failed})
	}
	cli.PrintTable(env.Out, table.Row{"request", "answered", "refused"}, rows)
	if more := len(commands) - shownCommands; more > 0 {
		env.Note("… %d more (--json has all)", more)
	}
}

// mutationsFirst puts commands that change the state before reads, as every server has to
// apply them. Each group keeps its order, the most frequent first.
func mutationsFirst(all []commandCount) []commandCount {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b commandCount) int {
		switch {
		case a.Reads == b.Reads:
			return 0
		case a.Reads:
			return 1
		default:
			return -1
		}
	})
	return all
}
