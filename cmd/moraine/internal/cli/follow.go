package cli

import "time"

// followEvery is the time between two looks at work that another process does.
const followEvery = 300 * time.Millisecond

// Follow shows on the bar how far work is that counts by itself. look returns what is done, of a total (0: unknown);
// ok is false if it does not know now. stop ends the bar with the error of the work. A caller may call it on nil:
// then nothing is shown, and nobody calls look.
func (b *Bar) Follow(look func() (done, total int64, ok bool)) (stop func(err error)) {
	if b == nil {
		return func(error) {}
	}
	show := func() {
		if done, total, ok := look(); ok {
			b.SetTotal(max(total, done))
			b.SetDone(done)
		}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(followEvery)
		defer tick.Stop()
		for {
			show()
			select {
			case <-tick.C:
			case <-end:
				return
			}
		}
	}()
	return func(err error) {
		close(end)
		<-ended
		b.Finish(err)
	}
}
