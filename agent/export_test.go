package agent

import "context"

// KeptStep is keptStep, for tests.
var KeptStep = keptStep

// Yield lets copies go before writes.
type Yield = yield

func (y *yield) Begin() (end func()) { return y.begin() }

func (y *yield) Wait(ctx context.Context, hurry <-chan struct{}) error { return y.wait(ctx, hurry) }

// YieldFor bounds how long writes stand still for copies.
const YieldFor = yieldFor

// MaxConns is maxConns, for tests.
const MaxConns = maxConns
