package agent

import "context"

// KeptStep is keptStep, for tests.
var KeptStep = keptStep

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
