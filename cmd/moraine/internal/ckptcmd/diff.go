package ckptcmd

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// maxDiffRows bounds the differences that `ckpt diff` prints without --all.
const maxDiffRows = 50

// diffSide is one of the two steps that `ckpt diff` compares.
type diffSide struct {
	run  cli.Location
	step uint64
}

func newCkptDiffCommand(env *cli.Env) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "diff RUN A [RUN2] B",
		Short: "Show which tensors and blobs differ between two checkpoints",
		Long: `Compare step A of RUN with step B of RUN, or of RUN2: the names, types, shapes and contents
of all tensors, and the blobs of all ranks. Where both steps cut a tensor in the same slices,
the command compares digests and reads no byte. Otherwise it reads the tensor from both.

Exit codes: 0 the checkpoints are equal, 1 they differ, or the error that standard error
names.`,
		Example: `  moraine ckpt diff moraine:///runs/llama 1000 2000
  moraine ckpt diff moraine:///runs/llama 1000 moraine:///runs/llama-copy 1000 --all`,
		Args: cobra.RangeArgs(3, 4),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, b, err := diffSides(args)
			if err != nil {
				return err
			}
			return ckptDiff(cmd.Context(), env, a, b, all)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, fmt.Sprintf("print all differences (default: the first %d)", maxDiffRows))
	return cmd
}

// diffSides reads RUN A B or RUN A RUN2 B.
func diffSides(args []string) (a, b diffSide, err error) {
	if a, err = diffSideOf(args[0], args[1]); err != nil {
		return a, b, err
	}
	run2 := args[0]
	if len(args) == 4 {
		run2 = args[2]
	}
	b, err = diffSideOf(run2, args[len(args)-1])
	return a, b, err
}

func diffSideOf(run, step string) (s diffSide, err error) {
	if s.run, err = cli.ParseRemote(run); err != nil {
		return s, err
	}
	if s.step, err = strconv.ParseUint(step, 10, 64); err != nil {
		return s, cli.UsageError("%q is not a step: write its number", step)
	}
	return s, nil
}

// diffRow is one difference, as `ckpt diff` prints it.
type diffRow struct {
	Tensor string  `json:"tensor,omitempty"`
	Blob   string  `json:"blob,omitempty"`
	Rank   *uint32 `json:"rank,omitempty"`
	Kind   string  `json:"kind"`
	A      string  `json:"a,omitempty"`
	B      string  `json:"b,omitempty"`
	Where  string  `json:"where,omitempty"`
}

func diffRowOf(d ckpt.Difference) diffRow {
	r := diffRow{Tensor: d.Tensor, Blob: d.Blob, Kind: string(d.Kind), A: d.A, B: d.B, Where: d.Where}
	if d.Blob != "" {
		r.Rank = &d.Rank
	}
	return r
}

// diffResult is what `ckpt diff --json` prints.
type diffResult struct {
	Equal       bool                        `json:"equal"`
	Tensors     int                         `json:"tensors"`
	Blobs       int                         `json:"blobs"`
	Differences int                         `json:"differences"`
	ByKind      map[ckpt.DifferenceKind]int `json:"by_kind"`
	BytesRead   int64                       `json:"bytes_read"`
	Rows        []diffRow                   `json:"rows"`
}

func ckptDiff(ctx context.Context, env *cli.Env, sideA, sideB diffSide, all bool) error {
	a, ca, err := openCheckpoint(ctx, env, sideA.run, stepChoice{step: sideA.step, given: true})
	if err != nil {
		return err
	}
	defer ca.Close()
	defer a.Close()
	b, cb, err := openCheckpoint(ctx, env, sideB.run, stepChoice{step: sideB.step, given: true})
	if err != nil {
		return err
	}
	defer cb.Close()
	defer b.Close()
	rows := []diffRow{}
	stop := env.StartBar("read to compare", 0).Follow(func() (done, total int64, ok bool) { return a.BytesRead() + b.BytesRead(), 0, true })
	report, err := ckpt.Diff(ctx, a, b, func(d ckpt.Difference) error {
		if all || len(rows) < maxDiffRows {
			rows = append(rows, diffRowOf(d))
		}
		return nil
	})
	stop(err)
	if err != nil {
		return err
	}
	if err := printDiff(env, sideA, sideB, report, rows); err != nil {
		return err
	}
	if report.Differences > 0 {
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

func printDiff(env *cli.Env, a, b diffSide, r ckpt.DiffReport, rows []diffRow) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, diffResult{r.Differences == 0, r.Tensors, r.Blobs, r.Differences, r.ByKind, r.BytesRead, rows})
	}
	compared := fmt.Sprintf("%s and %s compared, %s read", cli.CountOf(r.Tensors, "tensor"), cli.CountOf(r.Blobs, "blob"), cli.Size(uint64(r.BytesRead)))
	if r.Differences == 0 {
		env.Note("step %d of %s and step %d of %s are equal: %s", a.step, a.run, b.step, b.run, compared)
		return nil
	}
	lines := make([]table.Row, len(rows))
	for i, x := range rows {
		name := x.Tensor
		if x.Rank != nil {
			name = fmt.Sprintf("blob %s of rank %d", x.Blob, *x.Rank)
		}
		lines[i] = table.Row{name, x.Kind, x.A, x.B, x.Where}
	}
	cli.PrintTable(env.Out, table.Row{"tensor or blob", "difference", "A", "B", "where"}, lines)
	if more := r.Differences - len(rows); more > 0 {
		env.Note("and %d more: --all prints them", more)
	}
	env.Note("step %d of %s and step %d of %s differ in %s: %s", a.step, a.run, b.step, b.run,
		cli.Are(r.Differences, "name", "names"), compared)
	return nil
}
