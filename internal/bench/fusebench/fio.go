package fusebench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// checkTools fails where a program that a row needs is not here, before anything is measured.
func checkTools(chosen []choice) error {
	needs := func(is func(choice) bool) bool { return slices.ContainsFunc(chosen, is) }
	if needs(func(c choice) bool { return c.fio }) {
		if _, err := exec.LookPath("fio"); err != nil {
			return fmt.Errorf("bench: %s need fio, which is not installed: `apt install fio` or `dnf install fio`, or name other rows with --rows",
				strings.Join(fioRows(), ", "))
		}
	}
	if needs(func(c choice) bool { return c.name == "untar" }) {
		for _, tool := range []string{"tar", "ls", "rm"} {
			if _, err := exec.LookPath(tool); err != nil {
				return fmt.Errorf("bench: untar, ls and rm-r need the program %s: install it, or name other rows with --rows", tool)
			}
		}
	}
	return nil
}

// fioRows returns the names of the rows that fio measures.
func fioRows() (names []string) {
	for _, s := range specs {
		if s.fio {
			names = append(names, s.name)
		}
	}
	return names
}

// fioRun returns a row that one job of fio runs through the large file.
func fioRun(args ...string) func(context.Context, *site) (done, error) {
	return func(ctx context.Context, s *site) (done, error) {
		d, err := fio(ctx, s.large(), s.Size, args...)
		if err == nil && d.bytes != s.Size {
			err = fmt.Errorf("fio moved %d bytes, not %d", d.bytes, s.Size)
		}
		return d, err
	}
}

// fioRandom returns a row of blocks of 4 KiB at random, for so many seconds.
func fioRandom(rw string, args ...string) func(context.Context, *site) (done, error) {
	return func(ctx context.Context, s *site) (done, error) {
		return fio(ctx, s.large(), s.Size, append(randomArgs(rw, s.Config), args...)...)
	}
}

// fioRandomOnce is fioRandom that reads no block twice: each process has a part of the file of its
// own. It ends early if all is read.
func fioRandomOnce(ctx context.Context, s *site) (done, error) {
	part := max(s.Size/int64(s.Processes)/4096, 1) * 4096
	return fio(ctx, s.large(), part, "--rw=randread", "--bs=4k", "--randrepeat=0", "--group_reporting",
		fmt.Sprintf("--offset_increment=%d", part), fmt.Sprintf("--runtime=%dms", int64(s.Seconds*1e3)), fmt.Sprintf("--numjobs=%d", s.Processes))
}

func randomArgs(rw string, cfg Config) []string {
	return []string{"--rw=" + rw, "--bs=4k", "--norandommap", "--randrepeat=0", "--time_based", "--group_reporting",
		fmt.Sprintf("--runtime=%dms", int64(cfg.Seconds*1e3)), fmt.Sprintf("--numjobs=%d", cfg.Processes)}
}

// readLarge reads the large file, so that the next row finds it where the file system keeps it.
func readLarge(ctx context.Context, s *site) error {
	_, err := fio(ctx, s.large(), s.Size, "--rw=read", "--bs=1M")
	return err
}

// fioReport is what we read of fio's JSON.
type fioReport struct {
	Jobs []struct {
		Error int
		// User and System are percent of Runtime, in ms, which is the sum over all processes
		// of a job. They do not have what fio does before and after the job.
		User        float64 `json:"usr_cpu"`
		System      float64 `json:"sys_cpu"`
		Runtime     float64 `json:"job_runtime"`
		Read, Write struct {
			Bytes int64 `json:"io_bytes"`
			Total int64 `json:"total_ios"`
			// Runtime is in ms, with the fsync at the end.
			Runtime int64
		}
	}
}

// fio runs one job. The caches stay as they are: fio would otherwise drop the file's pages.
func fio(ctx context.Context, file string, size int64, args ...string) (done, error) {
	cmd := exec.CommandContext(ctx, "fio", append([]string{"--name=job", "--filename=" + file, fmt.Sprintf("--size=%d", size),
		"--ioengine=psync", "--fallocate=none", "--invalidate=0", "--thread=0", "--output-format=json"}, args...)...)
	cmd.Dir = os.TempDir() // fio leaves files of its state where it runs
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return done{}, fmt.Errorf("fio: %w: %s", err, strings.TrimSpace(said.String()))
	}
	// Warnings may come before the report.
	start := strings.IndexByte(string(out), '{')
	var report fioReport
	if start < 0 {
		return done{}, errors.New("fio printed no report")
	}
	if err := json.Unmarshal(out[start:], &report); err != nil {
		return done{}, fmt.Errorf("fio's report: %w", err)
	}
	var d done
	for _, j := range report.Jobs {
		if j.Error != 0 {
			return done{}, fmt.Errorf("fio: error %d", j.Error)
		}
		d.cpu += (j.User + j.System) / 100 * j.Runtime / 1e3
		d.bytes += j.Read.Bytes + j.Write.Bytes
		d.ops += j.Read.Total + j.Write.Total
		d.wall = max(d.wall, time.Duration(max(j.Read.Runtime, j.Write.Runtime))*time.Millisecond)
	}
	if d.bytes == 0 {
		return done{}, errors.New("fio moved nothing")
	}
	return d, nil
}
