package ckptcmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/goodput"
	"github.com/spf13/cobra"
)

// adviseFlags are the flags of `ckpt advise`.
type adviseFlags struct {
	mtbf, stall, restore, nodeMTBF time.Duration
	nodes                          int
	// agent is the socket of an agent that has measured the stall; drill measures the restore.
	agent string
	drill bool
	// measured says where figures come from that no flag gives.
	measured []string
}

func newCkptAdviseCommand(env *cli.Env) *cobra.Command {
	var o adviseFlags
	cmd := &cobra.Command{
		Use:   "advise [RUN] --mtbf D --stall D --restore D",
		Short: "Compute how often a job should save, and the goodput to expect",
		Long: `Compute the best time between two saves, and the expected goodput: the share of the time in
which the job trains and whose work is not lost. It uses the formulas of J. W. Young (1974,
first order) and J. T. Daly (2006, higher order). The command guesses nothing and needs no
cluster. With RUN it also shows how often the run saves now, and the goodput of that.

--stall is the time that the trainers stand still for one save: measure it around Begin and
Seal, or let --agent give the mean that the agent of a node has measured for RUN. --restore is
the time from a failure until the job trains again. --drill measures the part of it that reads:
it restores the newest step of RUN into memory, and verifies it.`,
		Example: `  moraine ckpt advise --mtbf 4h --stall 2s --restore 90s
  moraine ckpt advise --nodes 250 --node-mtbf 1000h --stall 2s --restore 90s
  moraine ckpt advise moraine:///runs/llama --mtbf 4h --stall 2s --restore 90s --json
  moraine ckpt advise moraine:///runs/llama --mtbf 4h --agent /run/moraine/agent.sock --drill`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			if err := o.measure(cmd, env, args); err != nil {
				return err
			}
			m, err := o.model(cmd)
			if err != nil {
				return err
			}
			var now observed
			if len(args) == 1 {
				if now, err = observe(cmd.Context(), env, args[0]); err != nil {
					return err
				}
			}
			a := adviceOf(m, now)
			a.Measured = o.measured
			return printAdvice(env, a)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.mtbf, "mtbf", 0, "mean time between failures of the whole job")
	f.DurationVar(&o.stall, "stall", 0, "how long the trainers stand still for one save")
	f.DurationVar(&o.restore, "restore", 0, "time from a failure until the job trains again")
	f.IntVar(&o.nodes, "nodes", 0, "number of nodes, with --node-mtbf instead of --mtbf")
	f.StringVar(&o.agent, "agent", "", "take the stall from what this agent has measured for RUN (unix socket)")
	f.BoolVar(&o.drill, "drill", false, "measure the restore: read the newest step of RUN at level nvme, whole")
	f.DurationVar(&o.nodeMTBF, "node-mtbf", 0, "mean time between failures of one node")
	return cmd
}

// complete checks that the flags say all that is needed, before anything is measured.
func (o *adviseFlags) complete(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	if given("nodes") != given("node-mtbf") || given("mtbf") == given("nodes") {
		return cli.UsageError("give --mtbf of the whole job, or --nodes and --node-mtbf")
	}
	if !given("stall") && o.agent == "" {
		return cli.UsageError("give --stall, or with RUN --agent: the cluster does not record how long trainers stand still for a save")
	}
	if !given("restore") && !o.drill {
		return cli.UsageError("give --restore, the time from a failure until the job trains again, or with RUN --drill")
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

// observed is how often a run saves.
type observed struct {
	gap   time.Duration // median between two commits
	steps int
}

// observe reads when the newest attempt of a run committed its steps.
func observe(ctx context.Context, env *cli.Env, arg string) (observed, error) {
	l, err := cli.ParseRemote(arg)
	if err != nil {
		return observed{}, err
	}
	run, c, err := openReader(ctx, env, l)
	if err != nil {
		return observed{}, err
	}
	defer c.Close()
	steps, err := ckpt.ListSteps(ctx, c.Client, run.ID(), false)
	if err != nil {
		return observed{}, cli.Named(err, l, run.ID())
	}
	return medianGap(steps), nil
}

// medianGap returns the median time between the commits of the last attempt, whose launch no
// failure has ended.
func medianGap(steps []ckpt.StepInfo) observed {
	if len(steps) == 0 {
		return observed{}
	}
	last := slices.MaxFunc(steps, func(a, b ckpt.StepInfo) int { return cmp.Compare(a.Attempt, b.Attempt) }).Attempt
	var at []time.Time
	for _, s := range steps {
		if s.Attempt == last {
			at = append(at, s.CommittedAt)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	var gaps []time.Duration
	for i := 1; i < len(at); i++ {
		gaps = append(gaps, at[i].Sub(at[i-1]))
	}
	if len(gaps) == 0 {
		return observed{steps: len(at)}
	}
	slices.Sort(gaps)
	return observed{gap: gaps[len(gaps)/2], steps: len(at)}
}

// advice is what `ckpt advise` prints.
type advice struct {
	MTBF        float64          `json:"mtbf_seconds"`
	Stall       float64          `json:"stall_seconds"`
	Restore     float64          `json:"restore_seconds"`
	Intervals   []adviceInterval `json:"intervals"`
	Steps       int              `json:"observed_steps,omitempty"`
	Measured    []string         `json:"measured,omitempty"`
	Assumptions []string         `json:"assumptions"`
}

// adviceInterval is a time between two saves, and what it leads to.
type adviceInterval struct {
	Method   string  `json:"method"`
	Interval float64 `json:"interval_seconds"`
	Goodput  float64 `json:"goodput"`
}

func adviceOf(m goodput.Model, now observed) advice {
	a := advice{MTBF: m.MTBF.Seconds(), Stall: m.Stall.Seconds(), Restore: m.Restore.Seconds(), Steps: now.steps, Assumptions: []string{
		"Failures are independent and exponentially distributed: the time since the last one does not matter.",
		"A failure costs the work since the last save. A save counts when its stall ends: if the step is committed later, add that time to --restore.",
		"The stall is the time that the trainers stand still for a save. They train between two saves without a pause.",
	}}
	add := func(method string, d time.Duration) {
		a.Intervals = append(a.Intervals, adviceInterval{method, d.Seconds(), m.Goodput(d)})
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
		rows[i] = table.Row{x.Method, inSeconds(x.Interval), fmt.Sprintf("%.2f %%", 100*x.Goodput)}
	}
	cli.PrintTable(env.Out, table.Row{"method", "train between saves", "expected goodput"}, rows)
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
