package bench

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/morainefs/moraine/internal/llama"
)

// torchRank is the program of a rank.
//
//go:embed torchrank.py
var torchRank string

// CheckTorch returns an error that says what to do if the interpreter lacks PyTorch or our package.
func CheckTorch(ctx context.Context, python string) error {
	out, err := exec.CommandContext(ctx, python, "-c", "import torch, moraine.torch").CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return fmt.Errorf("bench: torch needs a Python with PyTorch and the package moraine: in a checkout, "+
		`PYTHONPATH=python moraine bench torch --python "$(internal/tools/torch.sh)" makes one and uses it: %w: %s`, err, lines[len(lines)-1])
}

// torchRanks are the processes of all ranks. Each answers one command at a time.
type torchRanks struct {
	ranks []*torchProcess
	store string // file by which the ranks find each other
}

type torchProcess struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr strings.Builder
}

// torchConfig is what a rank gets at its start.
type torchConfig struct {
	Rank    int           `json:"rank"`
	World   int           `json:"world"`
	Store   string        `json:"store"`
	Run     string        `json:"run"`
	Agent   string        `json:"agent"`
	Tensors []torchTensor `json:"tensors"`
}

type torchTensor struct {
	Name  string  `json:"name"`
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"`
}

// torchCommand is what a rank shall do. It ignores what the command does not need.
type torchCommand struct {
	Do    string `json:"do"`
	Way   string `json:"way"`
	Path  string `json:"path"`
	Agent string `json:"agent"`
	Step  uint64 `json:"step"`
	Seed  uint64 `json:"seed"`
}

// torchAnswer has times in seconds of a clock that all processes of the machine share.
type torchAnswer struct {
	Begin    float64 `json:"begin"`
	Stalled  float64 `json:"stalled"`
	Durable  float64 `json:"durable"` // of a restore: its end
	Digest   string  `json:"digest"`
	FromNode float64 `json:"from_node"` // bytes
	Error    string  `json:"error"`
}

// startTorchRanks starts all ranks of a run, and returns when each has its state.
func startTorchRanks(ctx context.Context, e *Env, model llama.Model, run, agent string) (*torchRanks, error) {
	dir, err := filepath.Abs(e.Dir)
	if err != nil {
		return nil, err
	}
	config := torchConfig{World: ckptWorld, Store: filepath.Join(dir, "torch-store"), Run: run, Agent: agent}
	for _, t := range model.Tensors() {
		config.Tensors = append(config.Tensors, torchTensor{t.Name, t.DType.String(), t.Shape})
	}
	rs := &torchRanks{store: config.Store}
	for config.Rank = range ckptWorld {
		p, err := startTorchRank(ctx, e.Python, config)
		if err != nil {
			return nil, errors.Join(err, rs.end())
		}
		rs.ranks = append(rs.ranks, p)
	}
	if _, err := rs.answers(); err != nil {
		return nil, errors.Join(fmt.Errorf("bench: start of the ranks: %w", err), rs.end())
	}
	return rs, nil
}

func startTorchRank(ctx context.Context, python string, config torchConfig) (*torchProcess, error) {
	arg, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	p := &torchProcess{cmd: exec.CommandContext(ctx, python, "-c", torchRank, string(arg))}
	p.cmd.Stderr = &p.stderr
	p.cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = json.NewDecoder(bufio.NewReader(out))
	return p, p.cmd.Start()
}

// ask gives a command to all ranks at once, and returns their answers, by rank.
func (rs *torchRanks) ask(do string, c torchCommand) ([]torchAnswer, error) {
	c.Do = do
	line, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	for _, p := range rs.ranks {
		if _, err := p.in.Write(append(line, '\n')); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, p.stderr.String())
		}
	}
	return rs.answers()
}

// answers reads an answer of each rank. It returns at the first failure: the others may wait for
// that rank.
func (rs *torchRanks) answers() ([]torchAnswer, error) {
	type from struct {
		rank   int
		answer torchAnswer
		err    error
	}
	arrived := make(chan from, len(rs.ranks))
	for rank, p := range rs.ranks {
		go func() {
			f := from{rank: rank}
			if f.err = p.out.Decode(&f.answer); f.err == nil && f.answer.Error != "" {
				f.err = errors.New(f.answer.Error)
			}
			arrived <- f
		}()
	}
	answers := make([]torchAnswer, len(rs.ranks))
	for range rs.ranks {
		f := <-arrived
		if f.err != nil {
			rs.kill()
			return nil, fmt.Errorf("rank %d: %w", f.rank, f.err)
		}
		answers[f.rank] = f.answer
	}
	return answers, nil
}

// digests gives a command to all ranks, and returns their digests.
func (rs *torchRanks) digests(do string, c torchCommand) (digests []string, err error) {
	answers, err := rs.ask(do, c)
	for _, a := range answers {
		digests = append(digests, a.Digest)
	}
	return digests, err
}

func (rs *torchRanks) kill() {
	for _, p := range rs.ranks {
		_ = p.cmd.Process.Kill()
	}
}

// end ends all ranks, and returns what a rank that failed has printed.
func (rs *torchRanks) end() error {
	var errs []error
	for _, p := range rs.ranks {
		_ = p.in.Close() // the end of its input ends a rank
	}
	for rank, p := range rs.ranks {
		if err := p.cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("bench: rank %d: %w\n%s", rank, err, p.stderr.String()))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(rs.store))...)
}
