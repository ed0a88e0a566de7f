package fsckcmd

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/internal/fsck"
	"github.com/morainefs/moraine/internal/jsonname"
)

func describeFsck(report *fsck.Report) *fsckResult {
	r := &fsckResult{Devices: report.Devices, Chunks: report.Chunks, Bytes: report.Bytes, PendingChunks: report.Pending, PendingBytes: report.PendingBytes,
		More: report.More, Findings: []fsckFinding{}, LostStripes: []string{}, LostFiles: []view.LostRow{},
		NotChecked: []fsckMissed{}, BadObjects: []view.BadObject{}, Metadata: []string{}}
	for _, f := range report.LostFiles {
		row := view.LostRow{Path: jsonname.Name(f.Path), Inode: f.Inode.String(), More: f.More}
		for _, x := range f.Ranges {
			row.Ranges = append(row.Ranges, view.LostRange{Offset: x.Offset, Bytes: x.Bytes})
		}
		r.LostFiles = append(r.LostFiles, row)
	}
	for _, f := range report.Findings {
		r.Findings = append(r.Findings, fsckFinding{Fault: f.Fault, Device: uint32(f.Device), Host: f.Host, Stripe: f.Chunk.Stripe.String(),
			Index: f.Chunk.Index, Bytes: f.Bytes, Scheme: f.Scheme.String(), Queued: f.Queued})
	}
	for _, s := range report.LostStripes {
		r.LostStripes = append(r.LostStripes, s.String())
	}
	for _, n := range report.NotChecked {
		missed := fsckMissed{Host: n.Host, Devices: []uint32{}, Why: n.Why}
		for _, d := range n.Devices {
			missed.Devices = append(missed.Devices, uint32(d))
		}
		r.NotChecked = append(r.NotChecked, missed)
	}
	return r
}

func printFsck(env *cli.Env, r *fsckResult, repair bool) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, r)
	}
	if len(r.Findings) > 0 {
		rows := make([]table.Row, len(r.Findings))
		for i, f := range r.Findings {
			note := ""
			if f.Queued {
				note = "waits for repair"
			}
			rows[i] = table.Row{f.Fault, f.Device, f.Host, f.Stripe, f.Index, cli.Size(f.Bytes), f.Scheme, note}
		}
		cli.PrintTable(env.Out, table.Row{"fault", "device", "host", "stripe", "chunk", "size", "scheme", ""}, rows)
	}
	for _, l := range r.LostFiles {
		name := l.Path
		if name == "" {
			name = jsonname.Name("inode " + l.Inode + ", which has no name")
		}
		env.Note("lost: %s: %s", name, l.What())
	}
	for _, b := range r.BadObjects {
		env.Note("object: %s", b.Words())
	}
	for _, m := range r.Metadata {
		env.Note("metadata: %s", m)
	}
	for _, s := range r.LostStripes {
		env.Note("lost: stripe %s has too few chunks left to be rebuilt", s)
	}
	if r.Objects > 0 {
		env.Note("compared %s with the bucket", cli.CountOf(int(r.Objects), "object"))
	}
	env.Note("checked %s (%s) on %s in %.1f s; %s (%s) wait for deletion or for their commit", cli.CountOf(int(r.Chunks), "chunk"), cli.Size(r.Bytes),
		cli.CountOf(r.Devices, "device"), r.Seconds, cli.CountOf(int(r.PendingChunks), "chunk"), cli.Size(r.PendingBytes))
	if w := &r.Waiting; w.Counted > 0 {
		env.Note("%s for repair or to be moved: %s (`moraine cluster status` says how far it is)", cli.Are(int(w.Counted), "stripe waits", "stripes wait"), w.Causes())
	}
	adviseFsck(env, r, repair)
	return nil
}

// adviseFsck says what to do about the findings.
func adviseFsck(env *cli.Env, r *fsckResult, repair bool) {
	var broken, kept int
	var keptBytes uint64
	for _, f := range r.Findings {
		if f.Fault == fsck.Missing || f.Fault == fsck.Damaged {
			broken++
		} else {
			kept++
			keptBytes += f.Bytes
		}
	}
	switch {
	case r.Clean:
		env.Note("nothing is wrong")
	case broken > 0 && repair:
		env.Note("%s given to repair: see the progress with `moraine cluster status`, and check again", cli.CountOf(r.Queued, "chunk"))
	case broken > 0:
		env.Note("%s missing or damaged: `moraine fsck --repair` rebuilds them", cli.CountOf(broken, "chunk"))
	}
	if r.Dropped > 0 {
		env.Note("%s of %d unexplained chunks will be deleted, after the grace", cli.CountOf(r.Dropped, "chunk"), kept)
	}
	if kept > r.Dropped {
		env.Note("%s of %d (%s in all) that nothing explains: kept, and listed by `moraine cluster "+
			"quarantine`", cli.CountOf(kept-r.Dropped, "chunk"), kept, cli.Size(keptBytes))
	}
	if len(r.Metadata) > 0 {
		env.Note("the metadata is inconsistent: report it, with a backup (`moraine metadata backup`); " +
			"this never happens by itself")
	}
	if r.More {
		env.Note("there are more than these: check again after their repair")
	}
}

// fsckEnd prints the result of a check, also of a check that failed on the way; nil where
// all is right. The findings set the exit code.
func fsckEnd(env *cli.Env, r *fsckResult, repair bool, failed error) error {
	failed = errors.Join(failed, printFsck(env, r, repair))
	if r.Clean && failed == nil {
		return nil
	}
	wrong := []error{failed}
	for _, n := range r.NotChecked {
		devices := make([]string, len(n.Devices))
		for i, d := range n.Devices {
			devices[i] = fmt.Sprint(d)
		}
		switch {
		case env.Global.JSON: // it is in the result
		case n.Host == "":
			wrong = append(wrong, fmt.Errorf("not checked: %s", n.Why))
		default:
			wrong = append(wrong, fmt.Errorf("not checked: device %s of %s: %s", strings.Join(devices, ", "), n.Host, n.Why))
		}
	}
	err := errors.Join(wrong...)
	if len(r.Findings) > 0 || len(r.LostFiles) > 0 || len(r.BadObjects) > 0 || len(r.Metadata) > 0 || r.More || r.Waiting.Hurt() > 0 {
		return &cli.ExitError{Code: cli.ExitDegraded, Err: err}
	}
	if failed != nil {
		return err
	}
	return &cli.ExitError{Code: cli.ExitFailed, Err: err}
}
