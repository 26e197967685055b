"""The same programs under what others offer: `python -m benchmarks.faults.peers`.

Real packages, each as its manual says. A peer found a fault where it said anything at all on that run, raised or warned, that
torch does not say by itself; whether it named the cause is not asked. What it says on a healthy run is a false alarm.

The peers live in an environment of their own:

    python -m venv --system-site-packages /tmp/peers && /tmp/peers/bin/pip install "lightning==2.6.6" "traincheck==0.2.0"
    /tmp/peers/bin/pip install --no-deps cockpit-for-pytorch==1.0.2 backpack-for-pytorch==1.7.1 unfoldNd einops json-tricks seaborn

(`--no-deps`: BackPACK asks for torchvision, which it uses in its examples alone.)
"""
