package ckptcmd

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"golang.org/x/sys/unix"
)

// newestSteps returns the n newest steps that were not removed, newest first.
func newestSteps(steps []ckpt.StepInfo, n int) []ckpt.StepInfo {
	out := slices.DeleteFunc(slices.Clone(steps), func(s ckpt.StepInfo) bool { return s.State == ckpt.StepDeleted })
	slices.SortFunc(out, func(a, b ckpt.StepInfo) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), cmp.Compare(b.Step, a.Step))
	})
	return out[:min(n, len(out))]
}

// withoutTime returns what changes only if the run does.
func (s runState) withoutTime() ([]byte, error) {
	s.Time = time.Time{}
	s.Levels = slices.Clone(s.Levels)
	for n := range s.Levels {
		s.Levels[n].LostSeconds = 0
	}
	s.Waiting = slices.Clone(s.Waiting)
	for n := range s.Waiting {
		w := &s.Waiting[n]
		w.SinceBegun, w.SinceFirstSeal = 0, 0
		w.Ranks = slices.Clone(w.Ranks)
		for m := range w.Ranks {
			w.Ranks[m].SinceBegun, w.Ranks[m].Sent = 0, 0
		}
	}
	return json.Marshal(s)
}

// print prints the view; again says that it is not the first one.
func (s runState) print(env *cli.Env, again bool) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, s)
	}
	if again && isTerminal(env.Out) {
		fmt.Fprint(env.Out, "\x1b[H\x1b[2J") // to the upper left, and clear
	}
	fmt.Fprintf(env.Out, "%s  %s\n", s.Time.Format(time.DateTime), s.Run)
	printLevels(env, s.Levels)
	fmt.Fprintln(env.Out)
	rows := make([]table.Row, len(s.Steps))
	for n, r := range s.Steps {
		rows[n] = table.Row{r.Step, r.Attempt, r.State, r.Level, r.Ranks, cli.Size(r.Bytes), r.said(), waitsFor(r)}
	}
	cli.PrintTable(env.Out, table.Row{"step", "attempt", "state", "level", "ranks", "size", "marks", "waits for"}, rows)
	fmt.Fprintln(env.Out)
	s.printWaiting(env)
	s.Slowest.print(env)
	return nil
}

// isTerminal reports whether a person sees what is printed.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// printWaiting prints how long the missing ranks of open steps let the others wait.
func (s runState) printWaiting(env *cli.Env) {
	if len(s.Waiting) == 0 {
		return
	}
	rows := make([]table.Row, len(s.Waiting))
	for n, w := range s.Waiting {
		first := "none has"
		if !w.FirstSeal.IsZero() {
			first = inSeconds(w.SinceFirstSeal).String()
		}
		rows[n] = table.Row{w.Step, w.Attempt, int(w.World - w.Sealed), inSeconds(w.SinceBegun), first, rankList(w.Missing, int(w.More))}
	}
	cli.PrintTable(env.Out, table.Row{"open step", "attempt", "not sealed", "since begin", "since first seal", "ranks"}, rows)
	fmt.Fprintln(env.Out)
	rows = nil
	for _, w := range s.Waiting {
		for _, r := range w.Ranks {
			if len(rows) < maxShownRanks { // one screen
				rows = append(rows, table.Row{w.Step, r.Rank, r.begun(), r.sent()})
			}
		}
	}
	cli.PrintTable(env.Out, table.Row{"open step", "rank", "began", "sent"}, rows)
	fmt.Fprintln(env.Out)
}

func (r missingRank) begun() string {
	if r.Begun.IsZero() {
		return "not yet"
	}
	return inSeconds(r.SinceBegun).String() + " ago"
}

func (r missingRank) sent() string {
	if r.Begun.IsZero() {
		return ""
	}
	text := cli.Size(r.Sent)
	if r.Announced > 0 {
		text += " of " + cli.Size(r.Announced)
	}
	if r.Sharing > 1 {
		text += fmt.Sprintf(" (of %d ranks)", r.Sharing)
	}
	return text
}

// print prints the ranks that sealed last; of nil it prints nothing.
func (s *slowest) print(env *cli.Env) {
	if s == nil {
		return
	}
	rows := make([]table.Row, len(s.Ranks))
	for n, r := range s.Ranks {
		rows[n] = table.Row{r.Rank, inSeconds(r.Began), inSeconds(r.Sealed), inSeconds(r.Behind)}
	}
	fmt.Fprintf(env.Out, "step %d (attempt %d): half of the %d ranks had sealed after %s; the slowest:\n", s.Step, s.Attempt, s.World, inSeconds(s.Median))
	cli.PrintTable(env.Out, table.Row{"rank", "began after", "sealed after", "behind the first"}, rows)
	fmt.Fprintln(env.Out)
}

// printLevels prints the exposure at each level, for people.
func printLevels(env *cli.Env, levels []exposure) {
	rows := make([]table.Row, len(levels))
	for n, e := range levels {
		if !e.found() {
			rows[n] = table.Row{e.Level, "none", "", "all", "all"}
			continue
		}
		rows[n] = table.Row{e.Level, e.Step, e.Committed.Format(time.DateTime), e.LostSteps, time.Duration(e.LostSeconds * float64(time.Second)).Round(time.Second)}
	}
	cli.PrintTable(env.Out, table.Row{"level", "newest step", "committed", "lost steps", "lost time"}, rows)
}

// rankList names ranks, and says how many more there are.
func rankList(ranks []uint32, more int) string {
	var names []string
	for _, r := range ranks {
		names = append(names, strconv.Itoa(int(r)))
	}
	text := strings.Join(names, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// waitsFor says what a step needs until it is committed, or why it never will be.
func waitsFor(s stepRow) string {
	switch ckpt.StepState(s.State) {
	case ckpt.StepOpen:
		return "the ranks below"
	case ckpt.StepSealed:
		return "a mover checks it"
	}
	return s.Reason
}
