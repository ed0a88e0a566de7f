package inspectcmd

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/check"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
)

// checkRow is what `inspect state --check` prints.
type checkRow struct {
	Applied  uint64   `json:"applied"`
	Problems []string `json:"problems"`
}

// checkReplica checks the state of one stopped server. A backup comes from the leader, and
// says nothing about the state of the other servers.
func checkReplica(env *cli.Env, dir string, r kvtx.Reader, applied uint64) error {
	problems, err := check.Check(state.New(0).View(r))
	if err != nil {
		return err
	}
	if env.Global.JSON {
		if err := cli.PrintJSON(env.Out, checkRow{applied, append([]string{}, problems...)}); err != nil {
			return err
		}
	}
	for _, p := range problems {
		env.Note("%s", p)
	}
	if len(problems) > 0 {
		return fmt.Errorf("the state in %s is inconsistent (%s): replace this server (`moraine "+
			"metadata replace`), and report it", dir, cli.CountOf(len(problems), "problem"))
	}
	env.Note("all records are consistent, and match their sum")
	return nil
}

// entryRow is what `inspect log` prints of an entry.
type entryRow struct {
	Index    uint64   `json:"index"`
	Term     uint64   `json:"term"`
	Kind     string   `json:"kind"`
	Appended string   `json:"appended,omitempty"`
	Bytes    int      `json:"bytes"`
	Commands []string `json:"commands,omitempty"`
	Members  []string `json:"members,omitempty"`
	Segment  string   `json:"segment"`
	Damage   string   `json:"damage,omitempty"`
}

func newInspectLogCommand(env *cli.Env) *cobra.Command {
	var from, to uint64
	cmd := &cobra.Command{
		Use:   "log DIR",
		Short: "List the entries of a metadata server's log",
		Long: `List the entries of the log in a metadata server's --data, with the commands in each. The
command shows why an entry is damaged, and continues with the rest. Stop the server first.

Exit code 1 when anything is damaged.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			shown, damaged := 0, 0
			err := raftstore.InspectLog(vfs.OS{}, args[0], func(e raftstore.EntryInfo) error {
				if e.Index < from || (to > 0 && e.Index > to) {
					return nil
				}
				row := describeEntry(e)
				shown++
				if row.Damage != "" {
					damaged++
				}
				return printEntry(env, row)
			})
			if err != nil {
				return explainDir(args[0], err)
			}
			env.Note("%d entries, %d damaged", shown, damaged)
			if damaged > 0 {
				return fmt.Errorf("%d of %d entries are damaged: a server does not start on such a "+
					"log, or stops; replace it (`moraine metadata replace`)", damaged, shown)
			}
			return nil
		},
	}
	cmd.Flags().Uint64Var(&from, "from", 0, "first entry")
	cmd.Flags().Uint64Var(&to, "to", 0, "last entry; 0: to the end")
	return cmd
}

func describeEntry(e raftstore.EntryInfo) entryRow {
	row := entryRow{Index: e.Index, Term: e.Term, Kind: e.Kind, Bytes: len(e.Data), Members: e.Members, Segment: e.Segment}
	if !e.Appended.IsZero() {
		row.Appended = e.Appended.UTC().Format(time.RFC3339Nano)
	}
	err := e.Damage
	if e.Kind == "command" && err == nil {
		var commands []*statepb.Command
		if commands, err = state.DecodeEntry(e.Data); err == nil {
			for _, c := range commands {
				row.Commands = append(row.Commands, commandName(c))
			}
		}
	}
	if err != nil {
		row.Damage = err.Error()
	}
	return row
}

// commandName names a command and its session.
func commandName(c *statepb.Command) string {
	req := c.GetRequest()
	if req == nil {
		return opName(c)
	}
	name := opName(req)
	if req.Session != 0 {
		name += fmt.Sprintf(" of session %x, number %d", req.Session, req.Number)
	}
	if node := c.GetCaller().GetNode(); node != "" {
		name += ", by " + node
	}
	return name
}

func opName(m proto.Message) string {
	if f := wire.Op(m); f != nil {
		return string(f.Name())
	}
	return "unknown to this build"
}

func printEntry(env *cli.Env, r entryRow) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, r)
	}
	what := strings.Join(r.Commands, "; ")
	if r.Members != nil {
		what = strings.Join(r.Members, ", ")
	}
	if r.Damage != "" {
		what += "  DAMAGED: " + r.Damage
	}
	env.Note("%8d %4d %-13s %s", r.Index, r.Term, r.Kind, what)
	return nil
}

// snapshotRow is what `inspect snapshot` prints.
type snapshotRow struct {
	Name     string   `json:"name"`
	Index    uint64   `json:"index"`
	Term     uint64   `json:"term"`
	Applied  uint64   `json:"applied"`
	Bytes    int64    `json:"bytes"`
	Received bool     `json:"received"`
	Members  []string `json:"members"`
	Damage   string   `json:"damage,omitempty"`
}

func newInspectSnapshotCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "snapshot DIR",
		Short: "Describe a metadata server's snapshots, and read each to its end",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			shown, damaged := 0, 0
			err := raftstore.InspectSnapshots(vfs.OS{}, args[0], func(s raftstore.SnapshotInfo) error {
				row := snapshotRow{s.Name, s.Index, s.Term, s.Applied, s.Bytes, s.Received, s.Members, ""}
				if row.Members == nil {
					row.Members = []string{}
				}
				if s.Damage != nil {
					damaged++
					row.Damage = firstLine(s.Damage)
				}
				shown++
				if env.Global.JSON {
					return cli.PrintJSON(env.Out, row)
				}
				env.Note("%s: up to entry %d of term %d, state at %d, %s, members %s %s", row.Name, row.Index, row.Term, row.Applied,
					cli.Size(uint64(row.Bytes)), strings.Join(row.Members, ", "), row.Damage)
				return nil
			})
			if err == nil && shown == 0 {
				env.Note("there is no snapshot")
			}
			if err == nil && damaged > 0 {
				err = fmt.Errorf("%d snapshots are damaged", damaged)
			}
			return explainDir(args[0], err)
		},
	}
}

// firstLine leaves out the stack that pebble adds to its messages.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// explainDir says what the argument of inspect must be where it is not a directory of a
// metadata server.
func explainDir(dir string, err error) error {
	if st, bad := os.Stat(dir); err != nil && bad == nil && !st.IsDir() {
		return cli.UsageError("%s is a file: name the --data of a metadata server that is stopped "+
			"(`moraine metadata restore` makes one from a backup)", dir)
	}
	return err
}

// tableRow is what `inspect state` prints of a table.
type tableRow struct {
	Table string `json:"table"` // partition and table byte, in hex
	Pairs uint64 `json:"pairs"`
	Bytes uint64 `json:"bytes"`
}

// pairRow is a pair, in hex.
type pairRow struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func newInspectStateCommand(env *cli.Env) *cobra.Command {
	var prefix string
	var limit int
	var check bool
	cmd := &cobra.Command{
		Use:   "state DIR",
		Short: "Count the records of a metadata server's state, show some of them, or check them",
		Long: `Count the pairs of each table of the state in a metadata server's --data. With --key, show
the pairs whose keys start with it, in hex. docs/formats/metadata-keys.md lists the tables.
The server must not run. The state does not have the log entries after the one shown.

With --check the command reads every record, and compares it with the others and with the
running sum. "moraine fsck --metadata" does the same with a backup of the leader's. The
command keeps the whole namespace in memory. Exit code 1 when anything is inconsistent.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			lo, err := hex.DecodeString(strings.ReplaceAll(prefix, " ", ""))
			if err != nil {
				return cli.UsageError("--key %q: write bytes in hex", prefix)
			}
			if check && len(lo) > 0 {
				return cli.UsageError("--check reads the whole state: leave out --key")
			}
			return explainDir(args[0], raftstore.InspectState(vfs.OS{}, args[0], func(r kvtx.Reader, applied uint64) error {
				env.Note("the state after entry %d", applied)
				noteWaiting(env, args[0], applied)
				if check {
					return checkReplica(env, args[0], r, applied)
				}
				if len(lo) > 0 {
					return printPairs(env, r, lo, limit)
				}
				return printTables(env, r)
			}))
		},
	}
	cmd.Flags().StringVar(&prefix, "key", "", "show the pairs whose keys start with these bytes, in hex")
	cmd.Flags().BoolVar(&check, "check", false, "compare every record with the others, and all of them "+
		"with the running sum")
	cmd.Flags().IntVar(&limit, "limit", 100, "how many pairs --key shows at most")
	return cmd
}

// noteWaiting says which entries of the log the state does not have yet. A server applies
// them as it starts; after a crash of a young server these are all of them.
func noteWaiting(env *cli.Env, dir string, applied uint64) {
	var first, last uint64
	err := raftstore.InspectLog(vfs.OS{}, dir, func(e raftstore.EntryInfo) error {
		if e.Index > applied && e.Damage == nil {
			if first == 0 {
				first = e.Index
			}
			last = max(last, e.Index)
		}
		return nil
	})
	switch {
	case err != nil:
		env.Note("the state may lack entries: its log cannot be read: %v", err)
	case first > 0:
		env.Note("%d log entries (%d..%d) are not in it yet: the server applies the committed ones when "+
			"it starts", last-first+1, first, last)
	}
}

func printPairs(env *cli.Env, r kvtx.Reader, prefix []byte, limit int) error {
	var rows []pairRow
	err := r.Scan(prefix, nil, func(key, value []byte) bool {
		if !strings.HasPrefix(string(key), string(prefix)) || len(rows) >= limit {
			return false
		}
		v := hex.EncodeToString(value)
		if len(key) > 2 && key[2] == 0x02 {
			v = "(a signing key, not shown)"
		}
		rows = append(rows, pairRow{hex.EncodeToString(key), v})
		return true
	})
	if err != nil {
		return err
	}
	return cli.List(env, rows, table.Row{"key", "value"}, func(p pairRow) table.Row { return table.Row{p.Key, p.Value} })
}

func printTables(env *cli.Env, r kvtx.Reader) error {
	var rows []tableRow
	err := r.Scan([]byte{0}, nil, func(key, value []byte) bool {
		name := hex.EncodeToString(key[:min(3, len(key))])
		if len(rows) == 0 || rows[len(rows)-1].Table != name {
			rows = append(rows, tableRow{Table: name})
		}
		t := &rows[len(rows)-1]
		t.Pairs++
		t.Bytes += uint64(len(key) + len(value))
		return true
	})
	if err != nil {
		return err
	}
	return cli.List(env, rows, table.Row{"table", "pairs", "bytes"}, func(t tableRow) table.Row { return table.Row{t.Table, t.Pairs, cli.Size(t.Bytes)} })
}
