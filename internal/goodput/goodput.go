// Package goodput computes how often a training job should save, and which share of its time then
// counts. It has pure functions of durations: it measures nothing and knows no run.
//
// One path through it: a caller fills a Model -> Young or Daly gives the best interval -> Goodput
// gives the share of that interval, or of any other.
//
// Sources: J. W. Young, A first order approximation to the optimum checkpoint interval,
// Communications of the ACM 17(9), 1974. J. T. Daly, A higher order estimate of the optimum
// checkpoint interval for restart dumps, Future Generation Computer Systems 22(3), 2006.
package goodput

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Model is a job that saves at equal intervals. Its failures are independent and exponentially
// distributed, and each of them costs the work since the last save.
type Model struct {
	// MTBF is the mean time between failures of the whole job.
	MTBF time.Duration
	// Stall is how long the trainers stand still for one save.
	Stall time.Duration
	// Restore is the time from a failure until the job trains again, without the work that it
	// repeats.
	Restore time.Duration
}

// Check returns why the formulas do not apply to m; nil if they do.
func (m Model) Check() error {
	switch {
	case m.MTBF <= 0:
		return fmt.Errorf("the mean time between failures is %v: it must be above 0", m.MTBF)
	case m.Stall <= 0:
		return fmt.Errorf("the stall of a save is %v: it must be above 0", m.Stall)
	case m.Restore < 0:
		return fmt.Errorf("the time of a restore is %v: it must not be below 0", m.Restore)
	}
	return nil
}

// OfNodes returns the MTBF of a job that fails when any of its nodes fails.
func OfNodes(node time.Duration, nodes int) (time.Duration, error) {
	if nodes < 1 || node <= 0 {
		return 0, errors.New("the number of nodes and the time between failures of one must be above 0")
	}
	return node / time.Duration(nodes), nil
}

// Young returns the training time between two saves by Young's first-order formula,
// sqrt(2 * stall * MTBF). It holds while the stall is far below the MTBF.
func (m Model) Young() time.Duration {
	return seconds(math.Sqrt(2 * m.Stall.Seconds() * m.MTBF.Seconds()))
}

// Daly returns the training time between two saves by Daly's higher-order formula. It is the MTBF
// where the stall is twice the MTBF or more.
func (m Model) Daly() time.Duration {
	stall, mtbf := m.Stall.Seconds(), m.MTBF.Seconds()
	if stall >= 2*mtbf {
		return m.MTBF
	}
	r := stall / (2 * mtbf)
	return seconds(math.Sqrt(2*stall*mtbf)*(1+math.Sqrt(r)/3+r/9) - stall)
}

// Goodput returns the expected share of the time in which the job trains and whose work is not
// lost, from 0 to 1. The job trains for interval between two saves. It is the inverse of Daly's
// expected run time, which is exact for exponential failures: they may also hit a
// save or a restore, and the work that is repeated.
func (m Model) Goodput(interval time.Duration) float64 {
	if interval <= 0 {
		return 0
	}
	mtbf := m.MTBF.Seconds()
	whole := mtbf * math.Exp(m.Restore.Seconds()/mtbf) * math.Expm1((interval+m.Stall).Seconds()/mtbf)
	return interval.Seconds() / whole
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
