package agent

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine/internal/crc"
)

// ManifestOf returns the content of a manifest with a JSON.
func ManifestOf(json string) string { return fmt.Sprintf("%s\n%08x\n", json, crc.Sum([]byte(json))) }

// KeptStep is keptStep, for tests.
var KeptStep = keptStep

// PartsWithSums counts the parts that have ended, and have the sums of their blocks still.
func (a *Agent) PartsWithSums() (count int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.parts {
		if ended(p.ended) && p.save != nil {
			count++
		}
	}
	return count
}

// FrameMemory is frameMemory, for tests.
const FrameMemory = frameMemory

// FramesOf returns the bytes of large frames of a user.
func (a *Agent) FramesOf(uid uint32) int64 {
	a.frames.mu.Lock()
	defer a.frames.mu.Unlock()
	return a.frames.users[uid]
}

// Standstill lets copies go before writes.
type Standstill = standstill

func (s *standstill) Begin() (end func()) { return s.begin() }

func (s *standstill) Wait(ctx context.Context, hurry <-chan struct{}) error {
	return s.wait(ctx, hurry)
}

// StandstillFor bounds how long writes stand still for copies.
const StandstillFor = standstillFor

// MaxConns is maxConns, for tests.
const MaxConns = maxConns
