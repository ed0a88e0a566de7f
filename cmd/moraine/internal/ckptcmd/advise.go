package ckptcmd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/goodput"
	"github.com/spf13/cobra"
)

// adviseFlags are the flags of `ckpt advise`.
type adviseFlags struct {
	mtbf, stall, restore, nodeMTBF time.Duration
	nodes                          int
	// agent is the socket of an agent that has measured stall and restore; drill measures the restore now.
	agent string
	drill bool
	// planned are attempts that followed no failure.
	planned []uint
	// measured says where figures come from that no flag gives, and launches from which MTBF is.
	measured []string
	launches []launch
}

func newCkptAdviseCommand(env *cli.Env) *cobra.Command {
	var o adviseFlags
	cmd := &cobra.Command{
		Use:   "advise [RUN] [--mtbf D] [--stall D] [--restore D]",
		Short: "Compute how often a job should save, and the goodput to expect",
		Long: `Compute the best time between two saves, and the expected goodput: the share of the time in
which the job trains and whose work is not lost. It uses the formulas of J. W. Young (1974,
first order) and J. T. Daly (2006, higher order). The command guesses nothing. With all three
times it needs no cluster.

With RUN it takes what is not given from what was measured, says so, and names the flags for
what was not. It also shows how often the run saves now, and the goodput of that.

--mtbf is the mean time between failures of the job: with RUN, between its launches, if there
were several. Nothing records why a launch ended. The output says which attempts count as
failures; name with --planned those that were planned restarts. --stall is the time that the trainers stand still for one save: with RUN, the mean
that the agent of this node has measured. --restore is the time from a failure until the job
trains again: with RUN, the mean that the agent has measured of trainers that restore through
it, or with --drill the time in which this command restores the newest step into memory, and
verifies it. Both lack the time in which the job starts again.`,
		Example: `  moraine ckpt advise moraine:///runs/llama
  moraine ckpt advise --mtbf 4h --stall 2s --restore 90s
  moraine ckpt advise --nodes 250 --node-mtbf 1000h --stall 2s --restore 90s
  moraine ckpt advise moraine:///runs/llama --mtbf 4h --stall 2s --restore 90s --json
  moraine ckpt advise moraine:///runs/llama --mtbf 4h --agent /run/moraine/agent.sock --drill`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd, len(args) == 1); err != nil {
				return err
			}
			now, err := o.measure(cmd, env, args)
			if err != nil {
				return err
			}
			m, err := o.model(cmd)
			if err != nil {
				return err
			}
			a := adviceOf(m, now)
			a.Measured, a.Launches = o.measured, o.launches
			return printAdvice(env, a)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.mtbf, "mtbf", 0, "mean time between failures of the whole job")
	f.UintSliceVar(&o.planned, "planned", nil, "attempts of RUN that were planned restarts, and followed no failure")
	f.DurationVar(&o.stall, "stall", 0, "how long the trainers stand still for one save")
	f.DurationVar(&o.restore, "restore", 0, "time from a failure until the job trains again")
	f.IntVar(&o.nodes, "nodes", 0, "number of nodes, with --node-mtbf instead of --mtbf")
	f.StringVar(&o.agent, "agent", "", "unix socket of the agent whose figures of RUN count "+cli.AgentDefault)
	f.BoolVar(&o.drill, "drill", false, "measure the restore: read the newest step of RUN at level nvme, whole")
	f.DurationVar(&o.nodeMTBF, "node-mtbf", 0, "mean time between failures of one node")
	return cmd
}

// check refuses flags that contradict each other, or cannot be enough.
func (o *adviseFlags) check(cmd *cobra.Command, hasRun bool) error {
	given := cmd.Flags().Changed
	switch {
	case given("nodes") != given("node-mtbf") || given("mtbf") && given("nodes"):
		return cli.UsageError("give --mtbf of the whole job, or --nodes and --node-mtbf")
	case o.drill && given("restore"):
		return cli.UsageError("give --restore or --drill, not both")
	case given("agent") && given("stall") && (given("restore") || o.drill):
		return cli.UsageError("--agent measures what no other flag gives: leave it out")
	case given("planned") && (given("mtbf") || given("nodes") || !hasRun):
		return cli.UsageError("--planned is for a mean time between failures that is measured: name RUN, and give neither --mtbf nor --nodes")
	case hasRun:
		return nil
	case o.agent != "" || o.drill:
		return cli.UsageError("--agent and --drill measure a run: name it")
	}
	var lacks []string
	if !given("mtbf") && !given("nodes") {
		lacks = append(lacks, "--mtbf of the whole job (or --nodes and --node-mtbf)")
	}
	if !given("stall") {
		lacks = append(lacks, "--stall")
	}
	if !given("restore") {
		lacks = append(lacks, "--restore")
	}
	if len(lacks) > 0 {
		return cli.UsageError("give %s; or RUN, for what was measured", strings.Join(lacks, ", "))
	}
	return nil
}

// model makes the model of what is given and measured.
func (o *adviseFlags) model(cmd *cobra.Command) (goodput.Model, error) {
	m := goodput.Model{MTBF: o.mtbf, Stall: o.stall, Restore: o.restore}
	if cmd.Flags().Changed("nodes") {
		var err error
		if m.MTBF, err = goodput.OfNodes(o.nodeMTBF, o.nodes); err != nil {
			return m, cli.AsWrongUse(err)
		}
	}
	if err := m.Check(); err != nil {
		return m, cli.AsWrongUse(err)
	}
	return m, nil
}

// advice is what `ckpt advise` prints.
type advice struct {
	MTBF        float64          `json:"mtbf_seconds"`
	Stall       float64          `json:"stall_seconds"`
	Restore     float64          `json:"restore_seconds"`
	Intervals   []adviceInterval `json:"intervals"`
	Steps       int              `json:"observed_steps,omitempty"`
	StepTime    float64          `json:"step_seconds,omitempty"`
	Measured    []string         `json:"measured,omitempty"`
	Launches    []launch         `json:"launches,omitempty"` // from which MTBF is
	Assumptions []string         `json:"assumptions"`
}

// adviceInterval is a time between two saves, and what it leads to.
type adviceInterval struct {
	Method   string  `json:"method"`
	Interval float64 `json:"interval_seconds"`
	Goodput  float64 `json:"goodput"`
	// Steps is how many steps the run trains in Interval; 0: not known.
	Steps uint64 `json:"interval_steps,omitempty"`
}

func adviceOf(m goodput.Model, now observed) advice {
	a := advice{MTBF: m.MTBF.Seconds(), Stall: m.Stall.Seconds(), Restore: m.Restore.Seconds(), Steps: now.steps, StepTime: now.perStep.Seconds(), Assumptions: []string{
		"Failures are independent and exponentially distributed: the time since the last one does not matter.",
		"A failure costs the work since the last save. A save counts when its stall ends: if the step is committed later, add that time to --restore.",
		"The stall is the time that the trainers stand still for a save. They train between two saves without a pause.",
	}}
	add := func(method string, d time.Duration) {
		i := adviceInterval{Method: method, Interval: d.Seconds(), Goodput: m.Goodput(d)}
		if now.perStep > 0 {
			i.Steps = max(uint64((d+now.perStep/2)/now.perStep), 1)
		}
		a.Intervals = append(a.Intervals, i)
	}
	add("Daly 2006", m.Daly())
	add("Young 1974", m.Young())
	if now.gap > m.Stall {
		add("the run now", now.gap-m.Stall)
	}
	return a
}

func printAdvice(env *cli.Env, a advice) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, a)
	}
	env.Note("mean time between failures %s, stall %s, restore %s", inSeconds(a.MTBF), inSeconds(a.Stall), inSeconds(a.Restore))
	rows := make([]table.Row, len(a.Intervals))
	for i, x := range a.Intervals {
		steps := ""
		if x.Steps > 0 {
			steps = strconv.FormatUint(x.Steps, 10)
		}
		rows[i] = table.Row{x.Method, inSeconds(x.Interval), steps, fmt.Sprintf("%.2f %%", 100*x.Goodput)}
	}
	cli.PrintTable(env.Out, table.Row{"method", "train between saves", "steps", "expected goodput"}, rows)
	if a.Steps > 0 {
		env.Note("The last attempt of the run still has %s. Its median time between commits counts; removed steps make it longer.", cli.CountOf(a.Steps, "step"))
	}
	for _, s := range append(slices.Clone(a.Measured), a.Assumptions...) {
		env.Note("%s", s)
	}
	return nil
}

// inSeconds writes a duration to three digits or so.
func inSeconds(s float64) time.Duration {
	d := time.Duration(s * float64(time.Second))
	if d < 10*time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
