package agent

import (
	"context"
	"errors"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

const (
	// lookEvery is how often the agent asks the service for the newest good step of each level of each
	// open run: three small reads a run.
	lookEvery = time.Minute
	// exposeEvery is how often it sets the metrics of what a crash of the node would lose.
	exposeEvery = 5 * time.Second
	// lookPatience bounds the requests about one run.
	lookPatience = 20 * time.Second
)

// newestStep is the newest good step of a run at one level or safer, and when the agent learned of it.
type newestStep struct {
	ckpt.StepInfo
	learned time.Time
}

// following is what the agent knows of the levels of an open run.
type following struct {
	looked time.Time // when it asked the service last
	newest map[moraine.Level]newestStep
}

// follower keeps what a crash of the node would lose. It has no state of its own.
type follower struct{ a *Agent }

// follow looks at the open runs until the agent ends.
func (w follower) follow() {
	a := w.a
	every := a.cfg.Look
	if every <= 0 {
		every = lookEvery
	}
	for a.work.Err() == nil {
		a.mu.Lock()
		open := w.openRuns()
		due := a.figures.due(open, time.Now().Add(-every))
		a.mu.Unlock()
		for _, of := range due {
			w.look(of, open[of])
		}
		a.mu.Lock()
		w.expose()
		a.mu.Unlock()
		a.pause(min(every, exposeEvery))
	}
}

// expose brings the figures of all runs up to date. The caller holds the mutex.
func (w follower) expose() { w.a.figures.expose(w.openRuns(), w.begunSteps(), time.Now()) }

// due returns the open runs at which the agent has not looked since a time.
func (f *runFigures) due(open map[runOf]*run, since time.Time) (out []runOf) {
	for of := range open {
		if k := f.follow(of); k.looked.Before(since) {
			k.looked = time.Now()
			out = append(out, of)
		}
	}
	return out
}

// follow returns what is known of a run.
func (f *runFigures) follow(of runOf) *following {
	k := f.follows[of]
	if k == nil {
		k = &following{newest: map[moraine.Level]newestStep{}}
		f.follows[of] = k
	}
	return k
}

// look asks the service for the newest steps of a run. If it does not answer, what is known stays.
func (w follower) look(of runOf, r *run) {
	a := w.a
	began := time.Now()
	newest, err := newestOf(a.work, r.run)
	if err != nil {
		a.log.Info("newest steps not read", "run", of.path, "err", err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.figures.looked(of, newest, began)
}

// openRuns returns a run of each that trainers save to here, or whose sealed parts are being written.
// The caller holds the mutex.
func (w follower) openRuns() map[runOf]*run {
	out := map[runOf]*run{}
	for key, r := range w.a.runs {
		if !key.readOnly && ended(r.ready) && r.run != nil {
			out[runOf{key.uid, key.path}] = r
		}
	}
	return out
}

// begunSteps returns the newest step of each run that a trainer of this node has begun to save and that
// has not failed. The caller holds the mutex.
func (w follower) begunSteps() map[runOf]uint64 {
	newest := map[runOf]partKey{}
	for key, p := range w.a.parts {
		of := runOf{key.uid, key.path}
		if last, ok := newest[of]; p.state != agentproto.Failed && (!ok || key.after(last)) {
			newest[of] = key
		}
	}
	out := map[runOf]uint64{}
	for of, key := range newest {
		out[of] = key.step
	}
	return out
}

// newestOf asks the service for the newest good step of each level.
func newestOf(ctx context.Context, r *ckpt.Run) (map[moraine.Level]ckpt.StepInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	out := map[moraine.Level]ckpt.StepInfo{}
	for level := moraine.Memory; level <= moraine.Object; level++ {
		s, err := r.Latest(ctx, level)
		if errors.Is(err, moraine.NotFound) {
			break // the safer ones have none either
		}
		if err != nil {
			return nil, err
		}
		out[level] = s
	}
	return out, nil
}

// looked notes what the service had at a time. What the agent has learned since then stays.
func (f *runFigures) looked(of runOf, newest map[moraine.Level]ckpt.StepInfo, began time.Time) {
	_, label := f.getOf(of)
	k := f.follow(of)
	for level := moraine.Memory; level <= moraine.Object; level++ {
		known, have := k.newest[level]
		s, found := newest[level]
		switch {
		case have && known.learned.After(began):
		case !found:
			delete(k.newest, level) // it was removed, lost or quarantined
		case !have || known.Attempt != s.Attempt || known.Step != s.Step:
			f.learn(k, label, level, s)
		}
	}
}

// learn makes a step the newest of a level.
func (f *runFigures) learn(k *following, label string, level moraine.Level, s ckpt.StepInfo) {
	k.newest[level] = newestStep{s, time.Now()}
	at, known := s.Reached[level]
	if !known {
		at = s.CommittedAt
	}
	f.reached(label, level, at)
}

// expose sets what a crash of the node now would lose, for the runs that are open. Of others nobody
// knows whether they go on.
func (f *runFigures) expose(open map[runOf]*run, begun map[runOf]uint64, now time.Time) {
	for of, k := range f.follows {
		s, label := f.getOf(of)
		s.Levels = nil
		if open[of] == nil {
			delete(f.follows, of)
		}
		for level := moraine.Memory; level <= moraine.Object; level++ {
			newest, known := k.newest[level]
			if open[of] == nil || !known || label == otherRuns {
				f.metrics.hideExposure(label, level)
				continue
			}
			e := exposed(newest.StepInfo, level, begun[of], now)
			s.Levels = append(s.Levels, e)
			f.metrics.RunLostSteps.WithLabelValues(label, e.Level).Set(float64(e.LostSteps))
			f.metrics.RunLostSeconds.WithLabelValues(label, e.Level).Set(e.LostSeconds)
		}
	}
}

// exposed is what is lost if only the level and safer ones survive. begun is the newest step that a
// trainer has begun to save.
func exposed(s ckpt.StepInfo, level moraine.Level, begun uint64, now time.Time) agentproto.LevelStatus {
	return agentproto.LevelStatus{Level: level.String(), Attempt: s.Attempt, Step: s.Step, Committed: s.CommittedAt.UnixNano(),
		LostSteps: max(begun, s.Step) - s.Step, LostSeconds: max(now.Sub(s.CommittedAt).Seconds(), 0)}
}

// hideExposure removes the metrics of a level, so that unknown does not read as 0.
func (m *Metrics) hideExposure(run string, level moraine.Level) {
	m.RunLostSteps.DeleteLabelValues(run, level.String())
	m.RunLostSeconds.DeleteLabelValues(run, level.String())
}
