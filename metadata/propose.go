package metadata

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

// commandVersion is the version of the commands that this build proposes.
const commandVersion = 1

// maxCommand bounds one encoded command, in bytes. The largest requests, such as a commit of a
// thousand stripes, are well below.
const maxCommand = 4 << 20

// groupSize is the number of waiting commands that justifies another entry while one is in flight.
const groupSize = 64

// entryPatience is the time between two log lines about an entry without an answer. A command of the
// leader itself waits on: it ends with the entry or with the leadership.
const entryPatience = 30 * time.Second

// proposer packs waiting commands into entries of the replicated log without adding delay. A
// command that finds no entry in flight leaves alone, at once. Commands that arrive while an entry
// is in flight share the next one. It leaves when the former has ended, or when groupSize commands
// wait. Most of an entry's cost (messages, syncs, context switches) is the same for one command and
// for many.
type proposer struct {
	store   Store
	clock   clock.Clock
	metrics *lead.Metrics
	// observe receives every result in entry order, before its proposer does.
	observe func(*state.Result)

	maxCommands, maxBytes int
	maxInFlight           int
	settleMillis          uint64 // for each command; 0 is the default
	queue                 chan *proposal
	commands              limit.Resource // resource that the queue fills
	entries               limit.Resource // the answer to an entry
	groupReady            lead.Poke      // groupSize commands wait in the queue
	// doubt says that an entry may have taken effect, or still may, while observe did not receive
	// its results.
	doubt   atomic.Bool
	buffers sync.Pool // of *[]byte
	// underWay is the number of entries that the store is processing.
	underWay atomic.Int64
}

// proposal is one command on its way to the log.
type proposal struct {
	buf   *[]byte
	after func(*state.Result)
	done  chan outcome // has room for one
	// entered says that it has left the queue for a log entry.
	entered atomic.Bool
}

type outcome struct {
	result state.Result
	err    error
}

func newProposer(cfg *Config, deps *Deps, store Store, observe func(*state.Result)) *proposer {
	settle := uint64(cfg.SettleTime.Milliseconds())
	if settle == jobs.DefaultSettleMillis {
		settle = 0
	}
	reports := limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)
	return &proposer{
		settleMillis: settle,
		store:        store, clock: deps.Clock, metrics: deps.Metrics, observe: observe,
		maxCommands: cfg.EntryCommands, maxBytes: cfg.EntryBytes, maxInFlight: cfg.EntriesInFlight,
		queue: make(chan *proposal, cfg.QueuedCommands),
		commands: limit.Resource{Name: "queue of commands", Advice: "the metadata servers are overloaded, or their disks are slow",
			Reports: reports},
		entries: limit.Resource{Name: "answer to a log entry", Patience: entryPatience, Advice: "the log's disk, or the other servers, are slow",
			Reports: reports},
		groupReady: lead.NewPoke(),
		buffers:    sync.Pool{New: func() any { b := make([]byte, 0, 512); return &b }},
	}
}

// propose returns the state machine's answer to cmd, and sets its version and wall time. stopped is
// closed when this server stops leading. after, if not nil, is called with the result even if the
// caller has gone. An error means that the outcome is unknown, except InvalidArgument and TooLarge.
func (p *proposer) propose(ctx context.Context, stopped <-chan struct{}, cmd *statepb.Command, after func(*state.Result)) (state.Result, error) {
	began := p.clock.Now()
	prop, err := p.encode(cmd)
	if err != nil {
		return state.Result{}, err
	}
	prop.after = after
	if err := p.enqueue(ctx, stopped, prop); err != nil {
		return state.Result{}, err
	}
	res, err := p.wait(ctx, stopped, prop, began)
	p.metrics.ProposeWait.Observe(p.clock.Since(began).Seconds())
	return res, err
}

// encode encodes a command with the present time.
func (p *proposer) encode(cmd *statepb.Command) (*proposal, error) {
	cmd.Version, cmd.WallNanos, cmd.SettleMillis = commandVersion, p.clock.Now().UnixNano(), p.settleMillis
	buf := p.buffers.Get().(*[]byte)
	b, err := proto.MarshalOptions{}.MarshalAppend((*buf)[:0], cmd)
	if err != nil {
		return nil, &moraine.Error{Op: "metadata.propose", Kind: moraine.InvalidArgument, Err: err}
	}
	*buf = b
	if len(b) > maxCommand {
		return nil, &moraine.Error{Op: "metadata.propose", Kind: moraine.TooLarge,
			Err: fmt.Errorf("the command has %d bytes, %d at most", len(b), maxCommand)}
	}
	return &proposal{buf: buf, done: make(chan outcome, 1)}, nil
}

// wait returns the result of a proposal queued at began. If ctx ends before, the log says whether
// the proposal was in the queue or in an entry. A caller without a deadline is one of the leader's
// own tasks: it waits on, with a log line for each entryPatience.
func (p *proposer) wait(ctx context.Context, stopped <-chan struct{}, prop *proposal, began time.Time) (state.Result, error) {
	for ended := false; !ended; {
		var late <-chan time.Time
		if _, bounded := ctx.Deadline(); !bounded {
			late = p.clock.After(p.entries.Patience)
		}
		select {
		case o := <-prop.done:
			return o.result, o.err
		case <-ctx.Done():
			return state.Result{}, p.waitsFor(prop).GaveUp(ctx, p.clock.Since(began))
		case <-late:
			r := p.waitsFor(prop)
			r.Reports.Exceeded(r.Name, p.clock.Since(began))
		case <-stopped:
			ended = true
		}
	}
	select { // results before the stop are valid
	case o := <-prop.done:
		return o.result, o.err
	default:
		return state.Result{}, lead.ErrStopped
	}
}

// waitsFor is what a proposal waits for: its turn in the queue, or the answer to its entry.
func (p *proposer) waitsFor(prop *proposal) *limit.Resource {
	if prop.entered.Load() {
		return &p.entries
	}
	return &p.commands
}

func (p *proposer) enqueue(ctx context.Context, stopped <-chan struct{}, prop *proposal) error {
	select {
	case p.queue <- prop:
		if len(p.queue) >= groupSize-1 { // the worker holds one more
			p.groupReady.Set()
		}
		return nil
	default:
	}
	p.metrics.QueueFull.Inc()
	began := time.Now()
	select {
	case p.queue <- prop:
		return nil
	case <-ctx.Done():
		return p.commands.GaveUp(ctx, time.Since(began))
	case <-stopped:
		return lead.ErrStopped
	}
}

// work proposes entries until ctx ends, and returns when none is in flight.
func (p *proposer) work(ctx context.Context) {
	var sends sync.WaitGroup
	defer sends.Wait()
	ended := make(chan struct{}, p.maxInFlight)
	inFlight := 0
	var taken *proposal // taken from the queue, not yet in an entry
	for {
		if taken == nil {
			select {
			case taken = <-p.queue:
			case <-ctx.Done():
				return
			}
		}
		for len(ended) > 0 {
			<-ended
			inFlight--
		}
		for inFlight == p.maxInFlight || inFlight > 0 && 1+len(p.queue) < groupSize {
			select {
			case <-ended:
				inFlight--
			case <-p.groupReady:
			case <-ctx.Done():
				return
			}
		}
		var batch []*proposal
		batch, taken = p.fill(taken)
		inFlight++
		sends.Go(func() {
			p.underWay.Add(1)
			defer p.underWay.Add(-1)
			p.send(ctx, batch)
			ended <- struct{}{}
		})
	}
}

// fill packs first, and waiting proposals, into one entry. rest was taken from the queue and does
// not fit.
func (p *proposer) fill(first *proposal) (batch []*proposal, rest *proposal) {
	size := 0
	for rest = first; rest != nil && len(batch) < p.maxCommands && (size == 0 || size+len(*rest.buf) <= p.maxBytes); {
		size += len(*rest.buf)
		batch = append(batch, rest)
		rest = p.next()
	}
	return batch, rest
}

// next takes a waiting proposal; nil if there is none.
func (p *proposer) next() *proposal {
	select {
	case prop := <-p.queue:
		return prop
	default:
		return nil
	}
}

// send proposes one entry and distributes the results.
func (p *proposer) send(ctx context.Context, batch []*proposal) {
	commands := make([][]byte, len(batch))
	for i, prop := range batch {
		commands[i] = *prop.buf
	}
	entry := state.EncodeEntry(commands)
	p.metrics.BatchCommands.Observe(float64(len(batch)))
	p.metrics.BatchBytes.Observe(float64(len(entry)))
	for _, prop := range batch {
		prop.entered.Store(true)
		p.buffers.Put(prop.buf)
		prop.buf = nil
	}
	answer, err := p.store.Propose(ctx, entry)
	if err != nil {
		p.doubt.Store(true)
		if ctx.Err() != nil { // this server abandoned the entry, not the callers
			err = lead.ErrStopped
		}
		for _, prop := range batch {
			prop.done <- outcome{err: err}
		}
		return
	}
	results, ok := answer.([]state.Result)
	if !ok || len(results) != len(batch) {
		panic(fmt.Sprintf("metadata: an entry of %d commands was answered by %T", len(batch), answer))
	}
	for i, prop := range batch {
		p.observe(&results[i])
		if prop.after != nil {
			prop.after(&results[i])
		}
		prop.done <- outcome{result: results[i]}
	}
}
